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
local now, presence_ms, expired_seq = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local named_length, named_seq, ecq_named_length, ecq_named_seq =
  tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local ecq_expired_seq = tonumber(ARGV[10])
local known, present, unsubscribed, queues, entries, parked, in_flight, remembered = 0, 0, 0, 0, 0, 0, 0, 0
local ecq_queues, ecq_messages, ecq_live, ecq_in_flight = 0, 0, 0, 0
local longest, oldest, expired_queues, corrupt_keys, ecq_longest, ecq_oldest = {}, {}, {}, {}, {}, {}

local function add(list, item) list[#list + 1] = item end

-- Returns the reply, or nil if the key has a wrong type, so that one corrupt key does not stop the scan.
local function call_unless_corrupt(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if string.sub(reply.err, 1, 9) ~= 'WRONGTYPE' then error(reply) end
  add(corrupt_keys, key)
end

-- Returns the length of a queue and its oldest seq; nil if the queue is empty or its first member is not a seq.
local function queue_at(key)
  local length = call_unless_corrupt('ZCARD', key)
  local seq = length and redis.call('ZRANGE', key, 0, 0)[1]
  if not seq then return end
  if string.match(seq, '^%d+$') then return length, seq end
  add(corrupt_keys, key)
end

local count = {} -- for each kind of key, the function that counts one such key

function count.pending(key, owner)
  local length, seq = queue_at(key)
  if not length then return end
  queues, entries = queues + 1, entries + length
  if length > named_length then
    add(longest, owner)
    add(longest, length)
  end
  if tonumber(seq) < named_seq then
    add(oldest, owner)
    add(oldest, seq)
  end
  if tonumber(seq) <= expired_seq then add(expired_queues, owner) end
end

function count.parked(key, owner)
  local length, seq = queue_at(key)
  if not length then return end
  parked = parked + length
  if tonumber(seq) <= expired_seq then add(expired_queues, owner) end
end

function count.inflight() in_flight = in_flight + 1 end

function count.done(key) remembered = remembered + (call_unless_corrupt('ZCARD', key) or 0) end

count['ecq:pending'] = function(key, owner)
  local length, seq = queue_at(key)
  if not length then return end
  ecq_queues, ecq_messages = ecq_queues + 1, ecq_messages + length
  if length > ecq_named_length then
    add(ecq_longest, owner)
    add(ecq_longest, length)
  end
  if tonumber(seq) < ecq_named_seq then
    add(ecq_oldest, owner)
    add(ecq_oldest, seq)
  end
  if tonumber(seq) <= ecq_expired_seq then add(expired_queues, 'ecq/' .. owner) end
end

count['ecq:keys'] = function(key) ecq_live = ecq_live + (call_unless_corrupt('HLEN', key) or 0) end

count['ecq:inflight'] = function() ecq_in_flight = ecq_in_flight + 1 end

function count.presence(key)
  local fields = call_unless_corrupt('HMGET', key, 'connected', 'heard', 'subscribed')
  if not fields then return end
  local connected, heard, subscribed = unpack(fields)
  local heard_at = tonumber(heard or '0')
  if not heard_at then
    add(corrupt_keys, key)
    return
  end
  known = known + 1
  local is_present = connected == 'yes' or (connected == 'heard' and heard_at + presence_ms >= now)
  if not is_present then return end
  if subscribed == 'no' then unsubscribed = unsubscribed + 1 else present = present + 1 end
end

local cursor, keys = unpack(redis.call('SCAN', ARGV[1], 'COUNT', ARGV[2]))
for _, key in ipairs(keys) do
  local owner, kind = string.match(key, '^q:{\1?(.*)}:([%a:]+)$') -- as in manifold.contracts.keys.owner_of
  if owner and count[kind] then count[kind](key, owner) end
end
local counts = {#keys, known, present, unsubscribed, queues, entries, parked, in_flight, remembered}
local ecq_counts = {ecq_queues, ecq_messages, ecq_live, ecq_in_flight}
return {cursor, counts, longest, oldest, expired_queues, corrupt_keys, ecq_counts, ecq_longest, ecq_oldest}
