#!lua flags=allow-oom
-- run_despite_oom.lua: run one small command even if Redis is out of memory. The data that it adds is removed or expires soon.
-- KEYS[1] the command's key   ARGV[1] the command's name   then its arguments after the key; returns its reply
return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))
