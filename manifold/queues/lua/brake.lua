#!lua flags=allow-oom
-- brake.lua: set brakes of campaigns, and change their version if any has changed. A missing version, which says that brakes are
-- not loaded, stays missing unless these are all of them.
-- KEYS[1] brakes   KEYS[2] their version
-- ARGV[1] '1' if these are all brakes, else ''
-- ARGV[2…]: for each brake the campaign, '<seq> <order>' or '' to forget it, and the value that must be there, or '' for any with a
-- smaller seq
-- returns the number of brakes that have changed
-- The version is '<since>.<changed>': when all brakes came into a Redis that had no version, and the last change. Both are times
-- in microseconds, so that neither a Redis that was emptied nor one that went back repeats one.
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
