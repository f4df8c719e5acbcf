-- _ecq.lua: code shared by the verbs of a compacted queue; follows _owner.lua. docs/reference/redis.md lists the keys.
-- KEYS[1] pending   KEYS[2] inflight   KEYS[3] presence   KEYS[4] keys   KEYS[5] delivered   KEYS[6] messages   KEYS[7] attempts
-- KEYS[8] state
local DELIVERED, MESSAGES, STATE = KEYS[5], KEYS[6], KEYS[8]
local MESSAGE_AT_ONCE = 16384 -- max bytes of a message returned with the claim; a larger one is read separately
SUBSCRIBED, SENT = 'ecq', 'ecq_sent'

-- Remove a message that a newer one of its key replaces. A message in flight is finished first.
local function supersede(seq)
  if redis.call('HGET', INFLIGHT, 'seq') == seq then
    redis.call('HSET', INFLIGHT, 'superseded', '1')
    return
  end
  if redis.call('ZREM', PENDING, seq) == 0 then redis.call('ZREM', DELIVERED, seq) end
  redis.call('HDEL', MESSAGES, seq)
  redis.call('HDEL', ATTEMPTS, seq)
end

-- Remove a superseded message that was in flight.
local function drop(seq)
  redis.call('DEL', INFLIGHT)
  redis.call('ZREM', PENDING, seq)
  redis.call('HDEL', MESSAGES, seq)
  redis.call('HDEL', ATTEMPTS, seq)
end

local put_back_live = put_back
function put_back(seq, counted, may_come)
  if redis.call('HEXISTS', INFLIGHT, 'superseded') == 1 then drop(seq) else put_back_live(seq, counted, may_come) end
end

-- Whether to wake a dispatcher.
local function is_ready()
  return presence_state(tonumber(ARGV[1]), tonumber(ARGV[2])) == 'here' and redis.call('EXISTS', INFLIGHT) == 0
    and redis.call('EXISTS', PENDING) == 1
end

-- As `claim` of _owner.lua, but no entry is marked to end, and 'claimed' includes the message (key, NUL, payload), or '' if it is
-- large or missing.
function claim()
  local now = tonumber(ARGV[1])
  local held = redis.call('HMGET', INFLIGHT, 'seq', 'attempts', 'deadline')
  if held[1] then return {'busy', held[1], held[2], held[3]} end
  local seq = redis.call('ZRANGE', PENDING, 0, 0)[1]
  if not seq then return {'idle'} end
  local where, noted, passing, takes = presence_state(now, tonumber(ARGV[2]))
  local sent, left = sent_lately(noted)
  if sent and redis.call('ZSCORE', PENDING, sent) then seq = sent else sent = nil end
  if forced_outcome(seq, false, now, tonumber(ARGV[5])) then
    if sent then return {'busy', seq, redis.call('HGET', ATTEMPTS, seq) or '1', string.format('%.0f', now + left)} end
    return must_end(PENDING, now, tonumber(ARGV[5]))
  end
  if where ~= 'here' then return {where} end
  if passing then stay() end
  local attempt = tonumber(redis.call('HGET', ATTEMPTS, seq) or '0') + 1
  local deadline = put_in_flight(seq, attempt, now)
  local message = redis.call('HSTRLEN', MESSAGES, seq) <= MESSAGE_AT_ONCE and redis.call('HGET', MESSAGES, seq)
  return {'claimed', seq, tostring(attempt), deadline, message or '', takes or ''}
end

-- Advance the position to `seq`, unless it is already beyond.
local function advance(seq, at_ms)
  local known = redis.call('HGET', STATE, 'acked_seq')
  if not known or older(known, seq) then redis.call('HSET', STATE, 'acked_seq', seq, 'acked_at', at_ms) end
end

-- Remove messages that are not in flight, acknowledged or not. A queue without live messages needs no state.
local function forget(gone)
  local live, key_of = redis.call('HGETALL', COMPACTION), {}
  for i = 1, #live, 2 do key_of[live[i + 1]] = live[i] end
  for _, seq in ipairs(gone) do
    if key_of[seq] then redis.call('HDEL', COMPACTION, key_of[seq]) end
    redis.call('HDEL', MESSAGES, seq)
    redis.call('HDEL', ATTEMPTS, seq)
    redis.call('ZREM', DELIVERED, seq)
    redis.call('ZREM', PENDING, seq)
  end
  if redis.call('EXISTS', COMPACTION, INFLIGHT) == 0 then redis.call('DEL', STATE) end
end

-- Remove a batch of acknowledged messages written before `before_ms`; returns their number.
local PRUNED_AT_ONCE = 100
local function prune(before_ms)
  local before = string.format('%.0f', math.max(0, before_ms - EPOCH_MS) * SEQS_A_MS)
  local gone = redis.call('ZRANGEBYSCORE', DELIVERED, '-inf', '(' .. before, 'LIMIT', 0, PRUNED_AT_ONCE)
  if #gone > 0 then forget(gone) end
  return #gone
end
