#!lua flags=allow-oom
-- settle_due.lua: remove owners that were checked from the deadline index, except those that now have a later deadline.
-- KEYS[1] deadline index   ARGV[1] time up to which the index was checked, Unix ms   then the owners
-- returns the number of removed owners
local checked_until, removed = tonumber(ARGV[1]), 0
for i = 2, #ARGV do
  local deadline = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if deadline and tonumber(deadline) <= checked_until then removed = removed + redis.call('ZREM', KEYS[1], ARGV[i]) end
end
return removed
