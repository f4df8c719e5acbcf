#!lua flags=allow-oom
-- swap.lua: compare and set a string, even if Redis is out of memory.
-- KEYS[1] the key   ARGV[1] expected value, '' for no key   ARGV[2] new value, '' to delete the key
-- returns 1, or 0 if the value was not the expected one and nothing changed
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2]) end
return 1
