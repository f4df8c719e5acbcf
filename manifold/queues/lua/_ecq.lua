-- _ecq.lua: code that the verbs of compacted queues share. It follows _owner.lua. docs/reference/redis.md describes the keys.
-- KEYS[1] pending   KEYS[2] inflight   KEYS[3] presence   KEYS[4] keys   KEYS[5] delivered   KEYS[6] messages   KEYS[7] attempts
-- KEYS[8] state
local DELIVERED, MESSAGES, STATE = KEYS[5], KEYS[6], KEYS[8]
local MAX_CLAIMED_BYTES = 16384 -- a claim returns its message up to this size; a larger message is read separately
SUBSCRIBED, SENT = 'ecq', 'ecq_sent'

-- Remove a message that a newer message of its key replaces. If the message is in flight, only mark it as superseded.
local function supersede(seq)
  if redis.call('HGET', INFLIGHT, 'seq') == seq then
    redis.call('HSET', INFLIGHT, 'superseded', '1')
    return
  end
  if redis.call('ZREM', PENDING, seq) == 0 then redis.call('ZREM', DELIVERED, seq) end
  redis.call('HDEL', MESSAGES, seq)
  redis.call('HDEL', ATTEMPTS, seq)
end

-- Remove a superseded message that is in flight.
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

-- Whether the queue has something to claim, so that a dispatcher must be woken.
local function is_ready()
  return presence_state(tonumber(ARGV[1]), tonumber(ARGV[2])) == 'here' and redis.call('EXISTS', INFLIGHT) == 0
    and redis.call('EXISTS', PENDING) == 1
end

-- The same as `claim` of _owner.lua, with two differences: no message is marked to end, and the reply 'claimed' includes the
-- message (key, NUL, payload), or '' if the message is large or missing.
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
  local message = redis.call('HSTRLEN', MESSAGES, seq) <= MAX_CLAIMED_BYTES and redis.call('HGET', MESSAGES, seq)
  return {'claimed', seq, tostring(attempt), deadline, message or '', takes or ''}
end

-- Advance the position to `seq`, unless the position is already at or beyond `seq`.
local function advance(seq, at_ms)
  local known = redis.call('HGET', STATE, 'acked_seq')
  if not known or older(known, seq) then redis.call('HSET', STATE, 'acked_seq', seq, 'acked_at', at_ms) end
end

-- Remove these messages, none of which is in flight; they may be pending or acknowledged. If no live message is left, remove the
-- state of the queue too.
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

-- Remove up to PRUNE_BATCH_SIZE acknowledged messages that were written before `before_ms`; returns the number of removed
-- messages.
local PRUNE_BATCH_SIZE = 100
local function prune(before_ms)
  local before = string.format('%.0f', math.max(0, before_ms - EPOCH_MS) * SEQS_A_MS)
  local gone = redis.call('ZRANGEBYSCORE', DELIVERED, '-inf', '(' .. before, 'LIMIT', 0, PRUNE_BATCH_SIZE)
  if #gone > 0 then forget(gone) end
  return #gone
end
