-- ecq_load.lua: load a queue from its state in the lake, without payloads. State that is the same or newer in this Redis stays.
-- ARGV[6] epoch   ARGV[7] acked_seq or ''   ARGV[8] acked_at, Unix ms, or ''
-- ARGV[9] '1' if no further call for this queue follows; only then the epoch changes, because all messages are compared with it
-- then, for each live message: seq, key, and '1' if it is acknowledged
-- returns {word, number of new messages}, where word is one of those of ecq_append.lua
local MESSAGES_PER_COMMAND = 2000 -- Lua's stack holds some 8,000 arguments
local epoch, acked_seq, acked_at = ARGV[6], ARGV[7], ARGV[8]
local known_epoch, rewound_to, known_acked_seq = unpack(redis.call('HMGET', STATE, 'epoch', 'rewound_to', 'acked_seq'))
known_epoch = known_epoch or '0'
-- is_behind: the lake lacks a rewind; is_ahead: this Redis lacks one
local is_behind, is_ahead = older(epoch, known_epoch), older(known_epoch, epoch)
local is_empty = redis.call('EXISTS', COMPACTION, DELIVERED, INFLIGHT) == 0
local queued = 0

-- Whether an acknowledgement in the lake still counts, because no rewind that the lake lacks has undone it.
local function still_counts(seq)
  return not (is_behind and rewound_to and not older(seq, rewound_to))
end

local function reply()
  local word = 'known'
  if is_ready() then
    word = 'ready'
  elseif queued > 0 then
    word = 'queued'
  end
  return {word, queued}
end

if is_empty then
  for first = 10, #ARGV, 3 * MESSAGES_PER_COMMAND do
    local live, pending, delivered = {}, {}, {}
    for i = first, math.min(first + 3 * MESSAGES_PER_COMMAND - 1, #ARGV), 3 do
      local seq, key, is_acked = ARGV[i], ARGV[i + 1], ARGV[i + 2] == '1' and still_counts(ARGV[i])
      live[#live + 1], live[#live + 2] = key, seq
      local queue = is_acked and delivered or pending
      queue[#queue + 1], queue[#queue + 2] = seq, seq
    end
    if #live > 0 then redis.call('HSET', COMPACTION, unpack(live)) end
    if #pending > 0 then queued = queued + redis.call('ZADD', PENDING, unpack(pending)) end
    if #delivered > 0 then redis.call('ZADD', DELIVERED, unpack(delivered)) end
  end
else
  local held_seq = redis.call('HGET', INFLIGHT, 'seq')
  for i = 10, #ARGV, 3 do
    local seq, key, is_acked = ARGV[i], ARGV[i + 1], ARGV[i + 2] == '1' and still_counts(ARGV[i])
    local newest = redis.call('HGET', COMPACTION, key)
    if newest == seq then
      -- This Redis lacks the acknowledgement that the lake has, or it lacks the rewind that has undone the acknowledgement.
      if is_acked and not is_behind and seq ~= held_seq and redis.call('ZREM', PENDING, seq) == 1 then
        redis.call('ZADD', DELIVERED, seq, seq)
        redis.call('HDEL', ATTEMPTS, seq)
      elseif not is_acked and is_ahead and redis.call('ZREM', DELIVERED, seq) == 1 then
        redis.call('ZADD', PENDING, seq, seq)
        queued = queued + 1
      end
    elseif not newest or older(newest, seq) then
      redis.call('HSET', COMPACTION, key, seq)
      if newest then supersede(newest) end
      if is_acked then
        redis.call('ZADD', DELIVERED, seq, seq)
      elseif not redis.call('ZSCORE', DELIVERED, seq) then -- its acknowledgement may be known before the message
        redis.call('ZADD', PENDING, seq, seq)
        queued = queued + 1
      end
    end
  end
end

if ARGV[9] ~= '1' then return reply() end
if is_ahead then redis.call('HSET', STATE, 'epoch', epoch) end
if not is_behind then redis.call('HDEL', STATE, 'rewound_to') end -- the lake has the effects of all rewinds
if acked_seq ~= '' then
  if is_ahead then -- also if the position goes back, because of the rewind
    redis.call('HSET', STATE, 'acked_seq', acked_seq, 'acked_at', acked_at)
  elseif not is_behind or not known_acked_seq then
    advance(acked_seq, acked_at)
  end
end
return reply()
