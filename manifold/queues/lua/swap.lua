#!lua flags=allow-oom
-- swap.lua: replace the value of a string if it is the expected one, even if Redis is out of memory.
-- KEYS[1] the key   ARGV[1] expected value, '' for no key   ARGV[2] new value, '' to delete the key
-- returns 1, or 0 if the value is not the expected one, and nothing has changed
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2]) end
return 1
