-- _owner.lua: what the verbs share; put in front of each of them. Keys are always one owner's, in the order of contracts.keys.owner_keys:
-- KEYS[1] pending   KEYS[2] inflight   KEYS[3] presence   KEYS[4] keys   KEYS[5] done   KEYS[6] parked   KEYS[7] attempts
-- A seq is a string here: a Lua number is a double and would lose its last digits.
local PENDING, INFLIGHT, PRESENCE, COMPACTION, DONE, PARKED, ATTEMPTS =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]

local function older(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

-- 'here', 'absent' or 'unsubscribed'. A vehicle that was only heard, never seen to connect, is here until `heard` is too long ago.
local function whereabouts(now, presence_ms)
  local p = redis.call('HMGET', PRESENCE, 'connected', 'heard', 'subscribed')
  if p[1] == 'heard' and tonumber(p[2] or '0') + presence_ms < now then return 'absent' end
  if p[1] ~= 'yes' and p[1] ~= 'heard' then return 'absent' end
  if p[3] == 'no' then return 'unsubscribed' end
  return 'here'
end

-- Ends what is in flight without an outcome: it is pending again. `counted` is how many attempts it now has behind it.
local function put_back(seq, counted)
  redis.call('DEL', INFLIGHT)
  if counted > 0 then redis.call('HSET', ATTEMPTS, seq, counted) else redis.call('HDEL', ATTEMPTS, seq) end
end

-- The oldest pending entry goes in flight, if there is none yet and the vehicle is here.
-- {'claimed', seq, attempts} | {'busy', seq, attempts, deadline} | {'idle'} | {'absent'} | {'unsubscribed'}
-- `deadlines` is the list of milliseconds that the first, second, … attempt has; the last one serves for all further attempts.
local function claim(now, presence_ms, deadlines)
  local held = redis.call('HMGET', INFLIGHT, 'seq', 'attempts', 'deadline')
  if held[1] then return {'busy', held[1], held[2], held[3]} end
  local seq = redis.call('ZRANGE', PENDING, 0, 0)[1]
  if not seq then return {'idle'} end
  local where = whereabouts(now, presence_ms)
  if where ~= 'here' then return {where} end
  local attempt = tonumber(redis.call('HGET', ATTEMPTS, seq) or '0') + 1
  local wait = tonumber(deadlines[math.min(attempt, #deadlines)])
  local deadline = string.format('%.0f', now + wait)
  redis.call('HSET', INFLIGHT, 'seq', seq, 'published_at', string.format('%.0f', now), 'attempts', attempt, 'deadline', deadline)
  return {'claimed', seq, tostring(attempt), deadline}
end

-- Numbers joined by commas, as a list.
local function numbers(text)
  local list = {}
  for number in string.gmatch(text, '%d+') do list[#list + 1] = tonumber(number) end
  return list
end
