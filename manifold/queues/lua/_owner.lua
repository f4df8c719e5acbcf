-- _owner.lua: code that precedes every verb. The keys are those of one owner, in the order of
-- manifold.contracts.keys.owner_keys:
-- KEYS[1] pending   KEYS[2] inflight   KEYS[3] presence   KEYS[4] keys   KEYS[5] done   KEYS[6] parked   KEYS[7] attempts
-- A seq is a string here, because a Lua number is a double, which would lose the last digits of a seq.
-- ARGV[1] now_ms   ARGV[2] presence_ms   ARGV[3] ack deadline of the first attempt, ms; it doubles with each further attempt
-- ARGV[4] maximum of the ack deadline, ms   ARGV[5] retention_ms of an entry   the verb's own arguments begin with ARGV[6]
-- The score of an ended entry in DONE is the code of its outcome in manifold.contracts.outcomes.
local PENDING, INFLIGHT, PRESENCE, COMPACTION, DONE, PARKED, ATTEMPTS =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local EPOCH_MS, SEQS_A_MS = 1577836800000, 4194304 -- as in manifold.contracts.seq: a seq contains the time of its acceptance
local DELIVERED, SUPERSEDED, EXPIRED, FAILED, WITHDRAWN = '1', '2', '3', '5', '6'
local MAX_MUST_END = 200 -- entries that one reply lists as having to end
local SUBSCRIBED = 'subscribed' -- field of PRESENCE: whether the vehicle is subscribed to this queue's topics
-- Field of PRESENCE: '<until, ms>:<seq>' of an entry that was released although its publish may be under way until that time.
local SENT = 'sent'
local TAKES = 'takes' -- field of PRESENCE: the largest packet in bytes that the vehicle accepts; missing: no limit

-- The time of Redis, in Unix ms. Only this clock decides how long a publish may be under way, because the clocks of dispatchers
-- differ.
local function redis_ms()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- Whether seq `a` is less than seq `b`. Both are decimal strings, so the shorter one is less.
local function older(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

-- Returns 'here', 'absent' or 'unsubscribed', then the values of the fields SENT, 'passing' ('1' if the presence key has a TTL)
-- and TAKES; the last two only with 'here'. A vehicle whose connection is unknown, but that has sent a sign of life, counts as
-- 'here' until that sign (`heard`) is older than `presence_ms`.
local function presence_state(now, presence_ms)
  local connected, heard, subscribed, sent, passing, takes =
    unpack(redis.call('HMGET', PRESENCE, 'connected', 'heard', SUBSCRIBED, SENT, 'passing', TAKES))
  if connected == 'heard' and tonumber(heard or '0') + presence_ms < now then return 'absent', sent end
  if connected ~= 'yes' and connected ~= 'heard' then return 'absent', sent end
  if subscribed == 'no' or subscribed == 'qos0' then return 'unsubscribed', sent end
  return 'here', sent, passing, takes
end

-- The ack deadline of this attempt in ms; attempts are counted from 1.
local function wait_ms(attempt)
  local first = tonumber(ARGV[3])
  return math.max(first, math.min(first * 2 ^ (attempt - 1), tonumber(ARGV[4])))
end

-- Remove the TTL of the presence key, because an entry waits for the vehicle.
local function keep_presence()
  redis.call('PERSIST', PRESENCE)
  redis.call('HDEL', PRESENCE, 'passing')
end

-- The longest ack deadline of any attempt in ms, which is also the longest time for which a publish can be under way.
local function longest_wait_ms() return math.max(tonumber(ARGV[3]), tonumber(ARGV[4])) end

-- Note in `field` of the presence, which is SENT of one of the two queues, that the entry in flight may still be published after
-- its release.
-- The claim sets `send_by` to the deadline of a first attempt. A dispatcher hands the publish to the broker before `send_by`, or
-- not at all. The entry may be released earlier than that: because the vehicle's session or the connection to the broker ended,
-- or because the clock of another replica is ahead. Then the dispatcher may still publish. So until `send_by`, the entry may be
-- sent again, and an acknowledgement ends it, but no other entry of its queue may overtake it.
-- Dispatchers of older versions set no `send_by`. Their publish may be under way, from now on, for at most the ack deadline that
-- they gave the attempt.
local function note_sent(field, inflight)
  local seq, send_by, published_at, deadline =
    unpack(redis.call('HMGET', inflight, 'seq', 'send_by', 'published_at', 'deadline'))
  local now, until_ms = redis_ms(), tonumber(send_by or '')
  if not until_ms then
    local given_ms = (tonumber(deadline or '') or 0) - (tonumber(published_at or '') or 0)
    until_ms = now + math.max(tonumber(ARGV[3]), math.min(given_ms, longest_wait_ms()))
  end
  if until_ms > now then redis.call('HSET', PRESENCE, field, string.format('%.0f:', until_ms) .. seq) end
end

-- Returns the seq of the entry that no other may overtake, and for how many more milliseconds; nil if there is none. `sent` is
-- the value of the field SENT. A time that is more than `longest_wait_ms` ahead is ignored, because it was written before the
-- clock of Redis was set back.
local function sent_lately(sent)
  if not sent then return end
  local until_ms, seq = string.match(sent, '^(%d+):(%d+)$')
  if not until_ms then return end
  local left_ms = tonumber(until_ms) - redis_ms()
  if left_ms > 0 and left_ms <= longest_wait_ms() then return seq, left_ms end
end

-- Put the entry in flight back to pending; PENDING contains it all the time. `attempts` is its number of attempts so far, and
-- `may_be_sent` says whether its publish may be under way.
local function put_back(seq, attempts, may_be_sent)
  if may_be_sent then note_sent(SENT, INFLIGHT) end
  redis.call('DEL', INFLIGHT)
  if attempts > 0 then redis.call('HSET', ATTEMPTS, seq, attempts) else redis.call('HDEL', ATTEMPTS, seq) end
end

-- If a publish of `seq` may be under way, put the entry back to pending, so that no other entry overtakes it, and return the
-- reply of `claim` for it; otherwise return nil. `is_in_flight` says whether the entry is in flight, with this number of
-- attempts. If it is not, but pending, this call is a repetition of one whose reply was lost.
local function put_back_if_sent(seq, is_in_flight, attempts)
  local sent_seq, left_ms = sent_lately(redis.call('HGET', PRESENCE, SENT))
  if sent_seq ~= seq then return end
  local counted
  if is_in_flight then
    counted = tonumber(attempts) - 1 -- this attempt does not count
    put_back(seq, counted)
  elseif redis.call('ZSCORE', PENDING, seq) then
    counted = tonumber(redis.call('HGET', ATTEMPTS, seq) or 0)
  else
    return
  end
  return {'busy', seq, string.format('%.0f', math.max(1, counted)), string.format('%.0f', tonumber(ARGV[1]) + left_ms)}
end

-- The field of ATTEMPTS with the outcome of an entry that must end instead of being sent again.
local function outcome_field(seq) return seq .. ':ends' end

-- Remove an ended entry, which is already in DONE, from the queue. Returns whether it was pending or parked.
local function remove_ended(seq)
  local was_queued = redis.call('ZREM', PENDING, seq) == 1 or redis.call('ZREM', PARKED, seq) == 1 -- never in both
  redis.call('HDEL', ATTEMPTS, seq, outcome_field(seq))
  return was_queued
end

-- The code of the outcome with which a pending entry must end instead of being sent: `marked`, the value of its `outcome_field`,
-- or EXPIRED if its retention has passed; nil if the entry may be sent.
local function forced_outcome(seq, marked, now, retention_ms)
  if marked then return marked end
  local accepted_at = math.floor(tonumber(seq) / SEQS_A_MS) + EPOCH_MS
  if accepted_at + retention_ms < now then return EXPIRED end
end

-- Lists the oldest entries of a queue that are not in flight and may no longer be sent, up to the first that may:
-- {'must_end', seq, code of the outcome, attempts, …}. The entries stay until `end` ends them. So their outcomes are recorded
-- first, and a crash between record and end repeats a record instead of losing it.
local function list_must_end(queue, now, retention_ms)
  local found, held_seq = {'must_end'}, redis.call('HGET', INFLIGHT, 'seq')
  local sent_seq = sent_lately(redis.call('HGET', PRESENCE, SENT))
  for _, seq in ipairs(redis.call('ZRANGE', queue, 0, MAX_MUST_END - 1)) do
    if seq ~= held_seq and seq ~= sent_seq then
      local attempts, marked = unpack(redis.call('HMGET', ATTEMPTS, seq, outcome_field(seq)))
      local outcome = forced_outcome(seq, marked, now, retention_ms)
      if not outcome then break end
      found[#found + 1], found[#found + 2], found[#found + 3] = seq, outcome, attempts or '0'
    end
  end
  return found
end

-- Put an entry in flight. Returns its deadline by the caller's clock, which all times in replies use.
local function put_in_flight(seq, attempt, now)
  local deadline = string.format('%.0f', now + wait_ms(attempt))
  redis.call('HSET', INFLIGHT, 'seq', seq, 'published_at', string.format('%.0f', now), 'attempts', attempt, 'deadline', deadline,
    'send_by', string.format('%.0f', redis_ms() + tonumber(ARGV[3])))
  return deadline
end

-- Put the oldest pending entry in flight, if nothing is in flight and the vehicle is present and subscribed. Returns one of:
-- {'claimed', seq, attempts, deadline, '', takes or ''}
-- {'busy', seq, attempts, deadline}: this entry is in flight, or it must end but its publish may be under way until the deadline
-- {'idle'}, {'absent'} or {'unsubscribed'}
-- {'must_end', seq, code of the outcome, attempts, …}: nothing was claimed, because these oldest entries must be ended first
local function claim()
  local now, retention_ms = tonumber(ARGV[1]), tonumber(ARGV[5])
  local held_seq, held_attempts, held_deadline = unpack(redis.call('HMGET', INFLIGHT, 'seq', 'attempts', 'deadline'))
  if held_seq then return {'busy', held_seq, held_attempts, held_deadline} end
  local seq = redis.call('ZRANGE', PENDING, 0, 0)[1]
  if not seq then return {'idle'} end
  local presence, sent, passing, takes = presence_state(now, tonumber(ARGV[2]))
  local sent_seq, left_ms = sent_lately(sent)
  local is_sent = sent_seq and redis.call('ZSCORE', PENDING, sent_seq)
  if is_sent then seq = sent_seq end -- no other entry may overtake it
  local attempts, marked = unpack(redis.call('HMGET', ATTEMPTS, seq, outcome_field(seq)))
  if forced_outcome(seq, marked, now, retention_ms) then
    if is_sent then return {'busy', seq, attempts or '1', string.format('%.0f', now + left_ms)} end
    return list_must_end(PENDING, now, retention_ms)
  end
  if presence ~= 'here' then return {presence} end
  if passing then keep_presence() end
  local attempt = tonumber(attempts or '0') + 1
  return {'claimed', seq, tostring(attempt), put_in_flight(seq, attempt, now), '', takes or ''}
end
