-- ecq_rewind.lua: make the live messages from a given seq on pending again. A rewind older than the last one changes nothing.
-- ARGV[6] seq of the rewind itself   ARGV[7] first seq to send again   ARGV[8] that seq minus 1, which the caller computes
-- because a Lua number would lose its last digits
-- returns {word, number of messages that are pending again}, where word is 'ready' (wake a dispatcher), 'queued', or 'known' (the
-- rewind was applied before)
local rewind, first, new_position = ARGV[6], ARGV[7], ARGV[8]
local epoch, rewound_to, position = unpack(redis.call('HMGET', STATE, 'epoch', 'rewound_to', 'acked_seq'))
if epoch and not older(epoch, rewind) then return {is_ready() and 'ready' or 'known', 0} end
-- An empty queue keeps no epoch, because any client may rewind its own queue as often as it likes.
if redis.call('EXISTS', COMPACTION, STATE) == 0 then return {'known', 0} end

local undone, is_live, queued = {}, {}, 0
for _, seq in ipairs(redis.call('ZRANGE', DELIVERED, 0, -1)) do
  if not older(seq, first) then undone[#undone + 1] = seq end
end
if #undone > 0 then -- otherwise, each of a series of rewinds would read all live messages for nothing
  for _, seq in ipairs(redis.call('HVALS', COMPACTION)) do is_live[seq] = true end
end
for _, seq in ipairs(undone) do
  redis.call('ZREM', DELIVERED, seq)
  if is_live[seq] then
    redis.call('ZADD', PENDING, seq, seq)
    queued = queued + 1
  end
end

-- Keep the smallest first seq of all rewinds, because a load from the lake may later add messages that only an earlier rewind has
-- undone.
if not rewound_to or older(first, rewound_to) then redis.call('HSET', STATE, 'rewound_to', first) end
redis.call('HSET', STATE, 'epoch', rewind)
if position and older(new_position, position) then redis.call('HSET', STATE, 'acked_seq', new_position) end
return {is_ready() and 'ready' or 'queued', queued}
