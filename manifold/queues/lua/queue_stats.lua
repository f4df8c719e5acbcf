#!lua flags=no-writes,allow-cross-slot-keys
-- queue_stats.lua: scan one slice of all keys of a node and return its totals. Changes nothing.
-- ARGV[1] cursor   ARGV[2] number of keys to scan   ARGV[3] now_ms   ARGV[4] presence_ms   ARGV[5] seq up to which entries have
-- expired
-- ARGV[6] a queue that is longer than this is named   ARGV[7] a queue whose oldest seq is less than this is named
-- ARGV[8] and ARGV[9] the same for compacted queues   ARGV[10] seq up to which the messages of compacted queues have expired
-- returns {cursor, {keys, known, present, unsubscribed, queues, entries, parked, in flight, remembered},
--   {owner, length, …}, {owner, oldest seq, …}, {queue with an expired entry, …},
--   {key with a wrong type, or with something that is not a seq, …},
--   {compacted queues with something pending, messages pending or in flight, live, in flight},
--   {client id, length, …}, {client id, oldest seq, …}}
local now, presence_ms, expired = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local longer, older, ecq_longer, ecq_older = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local ecq_expired = tonumber(ARGV[10])
local known, present, unsubscribed, queues, entries, parked, in_flight, remembered = 0, 0, 0, 0, 0, 0, 0, 0
local ecq_queues, ecq_messages, ecq_live, ecq_in_flight = 0, 0, 0, 0
local longest, oldest, expired_owners, spoilt, ecq_longest, ecq_oldest = {}, {}, {}, {}, {}, {}

local function name(list, owner, what)
  list[#list + 1] = owner
  list[#list + 1] = what
end

local look = {}

-- Returns the reply, or nil if the key has a wrong type, so that one corrupt key does not stop the scan.
local function ask(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if string.sub(reply.err, 1, 9) ~= 'WRONGTYPE' then error(reply) end
  spoilt[#spoilt + 1] = key
end

-- Returns the length of a queue and its oldest seq; nil if the queue is empty or its first member is not a seq.
local function queue_at(key)
  local length = ask('ZCARD', key)
  local seq = length and redis.call('ZRANGE', key, 0, 0)[1]
  if not seq then return end
  if string.match(seq, '^%d+$') then return length, seq end
  spoilt[#spoilt + 1] = key
end

function look.pending(key, owner)
  local length, seq = queue_at(key)
  if not length then return end
  queues, entries = queues + 1, entries + length
  if length > longer then name(longest, owner, length) end
  if tonumber(seq) < older then name(oldest, owner, seq) end
  if tonumber(seq) <= expired then expired_owners[#expired_owners + 1] = owner end
end

function look.parked(key, owner)
  local length, seq = queue_at(key)
  if not length then return end
  parked = parked + length
  if tonumber(seq) <= expired then expired_owners[#expired_owners + 1] = owner end
end

function look.inflight() in_flight = in_flight + 1 end

function look.done(key) remembered = remembered + (ask('ZCARD', key) or 0) end

look['ecq:pending'] = function(key, owner)
  local length, seq = queue_at(key)
  if not length then return end
  ecq_queues, ecq_messages = ecq_queues + 1, ecq_messages + length
  if length > ecq_longer then name(ecq_longest, owner, length) end
  if tonumber(seq) < ecq_older then name(ecq_oldest, owner, seq) end
  if tonumber(seq) <= ecq_expired then expired_owners[#expired_owners + 1] = 'ecq/' .. owner end
end

look['ecq:keys'] = function(key) ecq_live = ecq_live + (ask('HLEN', key) or 0) end

look['ecq:inflight'] = function() ecq_in_flight = ecq_in_flight + 1 end

function look.presence(key)
  local p = ask('HMGET', key, 'connected', 'heard', 'subscribed')
  if not p then return end
  local heard = tonumber(p[2] or '0')
  if not heard then
    spoilt[#spoilt + 1] = key
    return
  end
  known = known + 1
  if p[1] == 'yes' or (p[1] == 'heard' and heard + presence_ms >= now) then
    if p[3] == 'no' then unsubscribed = unsubscribed + 1 else present = present + 1 end
  end
end

local found = redis.call('SCAN', ARGV[1], 'COUNT', ARGV[2])
for _, key in ipairs(found[2]) do
  local owner, kind = string.match(key, '^q:{\1?(.*)}:([%a:]+)$') -- as in manifold.contracts.keys.owner_of
  if owner and look[kind] then look[kind](key, owner) end
end
return {found[1], {#found[2], known, present, unsubscribed, queues, entries, parked, in_flight, remembered}, longest, oldest, expired_owners, spoilt,
  {ecq_queues, ecq_messages, ecq_live, ecq_in_flight}, ecq_longest, ecq_oldest}
