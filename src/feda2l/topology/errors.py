"""Errors about graphs and mixing weights; they link to their section of the troubleshooting page."""

from functools import partial

from feda2l.errors import FedA2LError

topology_error = partial(FedA2LError, see="topology")
