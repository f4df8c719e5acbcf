#!lua flags=allow-oom
-- brake.lua: set the brakes of campaigns, and change their version if any brake has changed. A missing version says that the
-- brakes are not loaded; it stays missing unless the arguments are all brakes.
-- KEYS[1] brakes   KEYS[2] their version
-- ARGV[1] '1' if these are all brakes, else ''
-- ARGV[2…]: for each brake, the campaign; the new value '<seq> <order>', or '' to forget the brake; and the value that it
-- replaces, or '' to replace any value with a smaller seq
-- returns the number of brakes that have changed
-- The version is '<since>.<changed>': when all brakes were loaded into this Redis, which had no version, and when a brake last
-- changed. Both are times in microseconds. So a Redis that was emptied, or that went back to an older state, repeats no version.
local changed = 0

local function seq_of(value) return string.match(value, '^%d+') or '' end

local function older(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

for i = 2, #ARGV, 3 do
  local campaign, brake, before = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local known = redis.call('HGET', KEYS[1], campaign)
  local fits
  if before ~= '' then fits = known == before else fits = not known or older(seq_of(known), seq_of(brake)) end
  if fits and known ~= brake then
    if brake == '' then redis.call('HDEL', KEYS[1], campaign) else redis.call('HSET', KEYS[1], campaign, brake) end
    changed = changed + 1
  end
end

local version = redis.call('GET', KEYS[2])
if version and changed > 0 or not version and ARGV[1] == '1' then
  local t = redis.call('TIME')
  local born, last = string.match(version or '', '^(%d+)%.(%d+)$')
  local now = string.format('%.0f', math.max((tonumber(last) or 0) + 1, tonumber(t[1]) * 1000000 + tonumber(t[2])))
  redis.call('SET', KEYS[2], (born or now) .. '.' .. now)
end
return changed
