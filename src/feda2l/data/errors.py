"""Errors about data. Each names its section of the troubleshooting page."""

from functools import partial

from feda2l.errors import FedA2LError

own_data_error = partial(FedA2LError, see="own-data")  # the user's own data cannot be read or used
damaged_data_error = partial(FedA2LError, see="data-damaged")  # a file of a published data set is not the published one
