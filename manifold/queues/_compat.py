"""The private name of redis-py that the queues use, and why. No other file of the room imports one."""

# What its parser gets from hiredis where a reply is not whole. A pipeline takes replies from the parser's reader by itself,
# because redis-py awaits each of them, which is most of what a reply costs.
from redis._parsers.hiredis import NOT_ENOUGH_DATA as NOT_ENOUGH_DATA
