-- _owner.lua: what the verbs share; put in front of each of them. Keys are always one owner's, in the order of manifold.contracts.keys.owner_keys:
-- KEYS[1] pending   KEYS[2] inflight   KEYS[3] presence   KEYS[4] keys   KEYS[5] done   KEYS[6] parked   KEYS[7] attempts
-- A seq is a string here: a Lua number is a double and would lose its last digits.
-- ARGV[1] now_ms   ARGV[2] presence_ms   ARGV[3] milliseconds that the first attempt has, each further one twice as many
-- ARGV[4] up to so many   ARGV[5] retention_ms: those that an entry may wait   a verb's own arguments begin with ARGV[6]
-- The score of an ended entry in DONE says how it ended: the number that manifold.contracts.outcomes gives each outcome.
local PENDING, INFLIGHT, PRESENCE, COMPACTION, DONE, PARKED, ATTEMPTS =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local EPOCH_MS, SEQS_A_MS = 1577836800000, 4194304 -- of manifold.contracts.seq: the instant at which an entry was accepted is in its seq
local SUPERSEDED, EXPIRED, FAILED = '2', '3', '5'
local MUST_END_AT_ONCE = 200
local SUBSCRIBED = 'subscribed' -- the field of PRESENCE that says whether the vehicle listens to what this queue sends
local SENT = 'sent' -- the field of PRESENCE that names what was let go while its publish may be under way: when that is over, ':', seq
local TAKES = 'takes' -- the field of PRESENCE that says of how many bytes a packet may be that the vehicle takes, where there is a limit

-- Redis' own time, Unix ms: for how long a publish may be under way is judged by it alone, since clocks of dispatchers differ.
local function redis_ms()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

local function older(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

-- 'here', 'absent' or 'unsubscribed'. A vehicle that was only heard, never seen to connect, is here until `heard` is too long ago.
-- Also what SENT holds, whether what is known of the vehicle is about to go by itself, and what TAKES holds.
local function presence_state(now, presence_ms)
  local p = redis.call('HMGET', PRESENCE, 'connected', 'heard', SUBSCRIBED, SENT, 'passing', TAKES)
  if p[1] == 'heard' and tonumber(p[2] or '0') + presence_ms < now then return 'absent', p[4] end
  if p[1] ~= 'yes' and p[1] ~= 'heard' then return 'absent', p[4] end
  if p[3] == 'no' or p[3] == 'qos0' then return 'unsubscribed', p[4] end
  return 'here', p[4], p[5], p[6]
end

-- How long the vehicle has to acknowledge this attempt (counted from 1).
local function wait_ms(attempt)
  local first = tonumber(ARGV[3])
  return math.max(first, math.min(first * 2 ^ (attempt - 1), tonumber(ARGV[4])))
end

-- What is known of the vehicle's connection is needed for as long as something waits for it.
local function stay()
  redis.call('PERSIST', PRESENCE)
  redis.call('HDEL', PRESENCE, 'passing')
end

-- The longest that any attempt has, and so the longest that anything is under way.
local function longest_ms() return math.max(tonumber(ARGV[3]), tonumber(ARGV[4])) end

-- A publish is handed to the broker within the time of a first attempt, or not at all: `send_by`, which the claim has noted. Where the
-- vehicle's session, or the connection to the broker, ends before that, or a replica's clock says that the deadline has passed, its dispatcher
-- may still hand it over. So until then the entry may be sent again, and ends by an acknowledgement, but nothing else of its queue may
-- overtake it. A dispatcher of an older version notes no `send_by`: it has, from now on, no longer than it gave the attempt.
local function note_sent(field, inflight)
  local held, now = redis.call('HMGET', inflight, 'seq', 'send_by', 'published_at', 'deadline'), redis_ms()
  local over = tonumber(held[2] or '')
  if not over then
    local given = (tonumber(held[4] or '') or 0) - (tonumber(held[3] or '') or 0)
    over = now + math.max(tonumber(ARGV[3]), math.min(given, longest_ms()))
  end
  if over > now then redis.call('HSET', PRESENCE, field, string.format('%.0f:', over) .. held[1]) end
end

-- The entry that nothing may overtake, and for how many milliseconds more; nil: there is none. `noted` is what SENT holds. What would last
-- longer than anything can was noted before the clock of Redis was set back.
local function sent_lately(noted)
  if not noted then return end
  local over, seq = string.match(noted, '^(%d+):(%d+)$')
  if not over then return end
  local left = tonumber(over) - redis_ms()
  if left > 0 and left <= longest_ms() then return seq, left end
end

-- Ends what is in flight without an outcome: it is pending again. `counted` is how many attempts it now has behind it; `may_come`: that
-- publish may be under way.
local function put_back(seq, counted, may_come)
  if may_come then note_sent(SENT, INFLIGHT) end
  redis.call('DEL', INFLIGHT)
  if counted > 0 then redis.call('HSET', ATTEMPTS, seq, counted) else redis.call('HDEL', ATTEMPTS, seq) end
end

-- Instead of letting others pass an entry of which a publish may be under way: what `claim` answers then; nil: there is none. It goes back
-- to pending if it is in flight; whoever asks again finds it there.
local function put_back_if_sent(seq, is_held, attempts)
  local noted, left = sent_lately(redis.call('HGET', PRESENCE, SENT))
  if noted ~= seq then return end
  local counted
  if is_held then
    counted = tonumber(attempts) - 1
    put_back(seq, counted)
  elseif redis.call('ZSCORE', PENDING, seq) then
    counted = tonumber(redis.call('HGET', ATTEMPTS, seq) or 0)
  else
    return
  end
  return {'busy', seq, string.format('%.0f', math.max(1, counted)), string.format('%.0f', tonumber(ARGV[1]) + left)}
end

-- Where an entry that must end some way instead of being sent again is marked, in ATTEMPTS.
local function mark(seq) return seq .. ':ends' end

-- An entry that has ended, which DONE remembers, is out of the queue for good. Returns whether it was queued.
local function leave(seq)
  local queued = redis.call('ZREM', PENDING, seq) == 1 or redis.call('ZREM', PARKED, seq) == 1 -- never in both
  redis.call('HDEL', ATTEMPTS, seq, mark(seq))
  return queued
end

-- How a pending entry has to end instead of being sent: as it was marked, or expired. Nil: it may be sent.
local function forced_outcome(seq, marked, now, retention_ms)
  if marked then return marked end
  if math.floor(tonumber(seq) / SEQS_A_MS) + EPOCH_MS + retention_ms < now then return EXPIRED end
end

-- The entries of a queue, oldest first, that are not in flight and must not be sent any more: {'must_end', seq, how, attempts, …}.
-- They stay until `end` ends them: so their outcomes are recorded first, and a crash in between repeats the record instead of losing it.
local function must_end(queue, now, retention_ms)
  local found, held = {'must_end'}, redis.call('HGET', INFLIGHT, 'seq')
  local sent = sent_lately(redis.call('HGET', PRESENCE, SENT))
  for _, seq in ipairs(redis.call('ZRANGE', queue, 0, MUST_END_AT_ONCE - 1)) do
    if seq ~= held and seq ~= sent then
      local tried = redis.call('HMGET', ATTEMPTS, seq, mark(seq))
      local how = forced_outcome(seq, tried[2], now, retention_ms)
      if not how then break end
      found[#found + 1], found[#found + 2], found[#found + 3] = seq, how, tried[1] or '0'
    end
  end
  return found
end

-- Returns the deadline, which is one of the asker's clock, as all that it is told are.
local function put_in_flight(seq, attempt, now)
  local deadline = string.format('%.0f', now + wait_ms(attempt))
  redis.call('HSET', INFLIGHT, 'seq', seq, 'published_at', string.format('%.0f', now), 'attempts', attempt, 'deadline', deadline,
    'send_by', string.format('%.0f', redis_ms() + tonumber(ARGV[3])))
  return deadline
end

-- The oldest pending entry goes in flight, if there is none yet and the vehicle is here.
-- {'claimed', seq, attempts, deadline, '', takes or ''} | {'busy', seq, attempts, deadline}: it is in flight, or must end and was sent until then
-- | {'idle'} | {'absent'} | {'unsubscribed'} | {'must_end', seq, how, attempts, …}: these come first, and must be ended; nothing was claimed
local function claim()
  local now, retention_ms = tonumber(ARGV[1]), tonumber(ARGV[5])
  local held = redis.call('HMGET', INFLIGHT, 'seq', 'attempts', 'deadline')
  if held[1] then return {'busy', held[1], held[2], held[3]} end
  local seq = redis.call('ZRANGE', PENDING, 0, 0)[1]
  if not seq then return {'idle'} end
  local where, noted, passing, takes = presence_state(now, tonumber(ARGV[2]))
  local sent, left = sent_lately(noted)
  if sent and redis.call('ZSCORE', PENDING, sent) then seq = sent else sent = nil end
  local tried = redis.call('HMGET', ATTEMPTS, seq, mark(seq))
  if forced_outcome(seq, tried[2], now, retention_ms) then
    if sent then return {'busy', seq, tried[1] or '1', string.format('%.0f', now + left)} end
    return must_end(PENDING, now, retention_ms)
  end
  if where ~= 'here' then return {where} end
  if passing then stay() end
  local attempt = tonumber(tried[1] or '0') + 1
  return {'claimed', seq, tostring(attempt), put_in_flight(seq, attempt, now), '', takes or ''}
end
