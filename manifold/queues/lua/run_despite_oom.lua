#!lua flags=allow-oom
-- run_despite_oom.lua: one small command of its own, also where Redis is out of memory: what it adds goes away by itself.
-- KEYS[1] its key   ARGV[1] its name   then what follows the key; returns its reply
return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))
