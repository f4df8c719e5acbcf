-- _ecq.lua: code that the verbs of compacted queues share. It follows _owner.lua. docs/reference/redis.md describes the keys.
-- KEYS[1] pending   KEYS[2] inflight   KEYS[3] presence   KEYS[4] keys   KEYS[5] delivered   KEYS[6] messages   KEYS[7] attempts
-- KEYS[8] state
local DELIVERED, MESSAGES, STATE = KEYS[5], KEYS[6], KEYS[8]
local MAX_CLAIMED_BYTES = 16384 -- a claim returns its message up to this size; a larger message is read separately
SUBSCRIBED, SENT = 'ecq', 'ecq_sent' -- the fields of PRESENCE for this queue; the functions of _owner.lua use them, too

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
local function remove_superseded(seq)
  redis.call('DEL', INFLIGHT)
  redis.call('ZREM', PENDING, seq)
  redis.call('HDEL', MESSAGES, seq)
  redis.call('HDEL', ATTEMPTS, seq)
end

-- Replace `put_back` of _owner.lua: a superseded message is removed instead of being put back.
local put_back_live = put_back
function put_back(seq, attempts, may_be_sent)
  local is_superseded = redis.call('HEXISTS', INFLIGHT, 'superseded') == 1
  if is_superseded then remove_superseded(seq) else put_back_live(seq, attempts, may_be_sent) end
end

-- Whether the queue has something to claim, so that a dispatcher must be woken.
local function is_ready()
  return presence_state(tonumber(ARGV[1]), tonumber(ARGV[2])) == 'here' and redis.call('EXISTS', INFLIGHT) == 0
    and redis.call('EXISTS', PENDING) == 1
end

-- Replace `claim` of _owner.lua, with two differences: no message is marked to end, and the reply 'claimed' includes the message
-- (key, NUL, payload), or '' if the message is large or missing.
function claim()
  local now, retention_ms = tonumber(ARGV[1]), tonumber(ARGV[5])
  local held_seq, held_attempts, held_deadline = unpack(redis.call('HMGET', INFLIGHT, 'seq', 'attempts', 'deadline'))
  if held_seq then return {'busy', held_seq, held_attempts, held_deadline} end
  local seq = redis.call('ZRANGE', PENDING, 0, 0)[1]
  if not seq then return {'idle'} end
  local presence, sent, passing, takes = presence_state(now, tonumber(ARGV[2]))
  local sent_seq, left_ms = sent_lately(sent)
  local is_sent = sent_seq and redis.call('ZSCORE', PENDING, sent_seq)
  if is_sent then seq = sent_seq end -- no other message may overtake it
  if forced_outcome(seq, false, now, retention_ms) then
    if is_sent then
      return {'busy', seq, redis.call('HGET', ATTEMPTS, seq) or '1', string.format('%.0f', now + left_ms)}
    end
    return list_must_end(PENDING, now, retention_ms)
  end
  if presence ~= 'here' then return {presence} end
  if passing then keep_presence() end
  local attempt = tonumber(redis.call('HGET', ATTEMPTS, seq) or '0') + 1
  local deadline = put_in_flight(seq, attempt, now)
  local is_small = redis.call('HSTRLEN', MESSAGES, seq) <= MAX_CLAIMED_BYTES
  local message = is_small and redis.call('HGET', MESSAGES, seq)
  return {'claimed', seq, tostring(attempt), deadline, message or '', takes or ''}
end

-- Advance the position to `seq`, unless the position is already at or beyond `seq`.
local function advance(seq, at_ms)
  local position = redis.call('HGET', STATE, 'acked_seq')
  if not position or older(position, seq) then redis.call('HSET', STATE, 'acked_seq', seq, 'acked_at', at_ms) end
end

-- Remove these messages, none of which is in flight; they may be pending or acknowledged. If no live message is left, remove the
-- state of the queue too.
local function remove_messages(seqs)
  local keys_and_seqs, key_of = redis.call('HGETALL', COMPACTION), {}
  for i = 1, #keys_and_seqs, 2 do key_of[keys_and_seqs[i + 1]] = keys_and_seqs[i] end
  for _, seq in ipairs(seqs) do
    if key_of[seq] then redis.call('HDEL', COMPACTION, key_of[seq]) end
    redis.call('HDEL', MESSAGES, seq)
    redis.call('HDEL', ATTEMPTS, seq)
    redis.call('ZREM', DELIVERED, seq)
    redis.call('ZREM', PENDING, seq)
  end
  if redis.call('EXISTS', COMPACTION, INFLIGHT) == 0 then redis.call('DEL', STATE) end
end

local PRUNE_BATCH_SIZE = 100

-- Remove up to PRUNE_BATCH_SIZE acknowledged messages that were written before `before_ms` (Unix ms); returns the number of
-- removed messages.
local function prune(before_ms)
  local first_kept_seq = string.format('%.0f', math.max(0, before_ms - EPOCH_MS) * SEQS_A_MS)
  local seqs = redis.call('ZRANGEBYSCORE', DELIVERED, '-inf', '(' .. first_kept_seq, 'LIMIT', 0, PRUNE_BATCH_SIZE)
  if #seqs > 0 then remove_messages(seqs) end
  return #seqs
end
