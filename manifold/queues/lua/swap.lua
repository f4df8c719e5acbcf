#!lua flags=allow-oom
-- swap.lua: one value takes the place of another, if the key holds that one; also where Redis is out of memory.
-- KEYS[1] the key   ARGV[1] what it should hold, '' for nothing   ARGV[2] what takes its place, '' for nothing
-- returns 1, or 0 where it holds something else: then nothing was changed
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2]) end
return 1
