#!lua flags=allow-oom
-- settle_due.lua: these owners have been looked at. One that was put in again meanwhile, for a later time, stays.
-- KEYS[1] deadline index   ARGV[1] the time up to which it was looked at   then the owners; returns how many were taken out
local taken = 0
for i = 2, #ARGV do
  local at = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if at and tonumber(at) <= tonumber(ARGV[1]) then taken = taken + redis.call('ZREM', KEYS[1], ARGV[i]) end
end
return taken
