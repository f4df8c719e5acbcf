#!lua flags=allow-oom
-- brake.lua: set the brakes of campaigns, and change their version if any brake has changed. A missing version says that the
-- brakes are not loaded; it stays missing unless the arguments are all brakes.
-- KEYS[1] brakes   KEYS[2] their version
-- ARGV[1] '1' if these are all brakes, else ''
-- ARGV[2…]: for each brake, the campaign; the new value '<seq> <order>', or '' to remove the brake; and the value that it
-- replaces, or '' to replace any value with a smaller seq
-- returns the number of brakes that have changed
-- The version is '<since>.<changed>': when all brakes were loaded into this Redis, which had no version, and when a brake last
-- changed. Both are times in microseconds. So a Redis that was emptied, or that went back to an older state, repeats no version.
local change_count = 0

local function seq_of(brake) return string.match(brake, '^%d+') or '' end

-- Whether seq `a` is less than seq `b`. Both are decimal strings, so the shorter one is less.
local function older(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

for i = 2, #ARGV, 3 do
  local campaign, new, old = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local current = redis.call('HGET', KEYS[1], campaign)
  local may_replace
  if old ~= '' then
    may_replace = current == old
  else
    may_replace = not current or older(seq_of(current), seq_of(new))
  end
  if may_replace and current ~= new then
    if new == '' then redis.call('HDEL', KEYS[1], campaign) else redis.call('HSET', KEYS[1], campaign, new) end
    change_count = change_count + 1
  end
end

local version = redis.call('GET', KEYS[2])
local is_changed = version and change_count > 0
local is_loaded_now = not version and ARGV[1] == '1'
if is_changed or is_loaded_now then
  local t = redis.call('TIME')
  local since, last_changed = string.match(version or '', '^(%d+)%.(%d+)$')
  -- Later than the last change, even if the clock of Redis was set back.
  local now = math.max((tonumber(last_changed) or 0) + 1, tonumber(t[1]) * 1000000 + tonumber(t[2]))
  local changed = string.format('%.0f', now)
  redis.call('SET', KEYS[2], (since or changed) .. '.' .. changed)
end
return change_count
