#!lua flags=no-writes
-- read_brakes.lua: read the brakes of all campaigns, their version, and the time of Redis.
-- KEYS[1] brakes   KEYS[2] their version
-- returns {version or '', Unix ms, {campaign, brake, …}}
local t = redis.call('TIME')
local found = redis.call('HGETALL', KEYS[1])
return {redis.call('GET', KEYS[2]) or '', tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000), found}
