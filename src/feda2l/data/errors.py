"""Errors about data, each with its section of the troubleshooting page."""

from functools import partial

from feda2l.errors import FedA2LError

own_data_error = partial(FedA2LError, see="own-data")  # a user's own data cannot be read or used
damaged_data_error = partial(FedA2LError, see="data-damaged")  # the files of a published data set are not as published
