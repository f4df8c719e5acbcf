#!lua flags=allow-oom
-- run_despite_oom.lua: run one small command even if Redis is out of memory; what it adds is removed or expires soon.
-- KEYS[1] the command's key   ARGV[1] its name   then what follows the key; returns its reply
return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))
