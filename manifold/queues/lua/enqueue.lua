-- enqueue.lua: queue entries of one owner. Idempotent; an entry that has ended never comes back.
-- ARGV[6] '1' with compaction   then, for each entry: seq, and with compaction its compaction key
-- returns {word, number of new entries, {superseded seq, …}}, where word is 'ready' (the vehicle is present and subscribed,
-- something is pending and nothing is in flight: wake a dispatcher), 'queued', or 'known' (no entry is new)
-- If an entry is offered again, an earlier caller may have crashed before it recorded the outcomes of superseded entries. So all
-- seqs that are remembered as superseded are returned then.
local now, presence_ms, compacting = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[6] == '1'
local plain = not compacting and redis.call('EXISTS', DONE, PARKED) == 0
local queued, again, superseded = 0, false, {}

local function supersede(seq)
  redis.call('ZADD', DONE, 'NX', SUPERSEDED, seq)
  leave(seq)
  superseded[#superseded + 1] = seq
end

-- Replace the older one of two waiting entries with the same compaction key. Returns whether `seq` is still to be queued.
local function compact(seq, key)
  local other = redis.call('HGET', COMPACTION, key)
  local waits = other and (redis.call('ZSCORE', PENDING, other) or redis.call('ZSCORE', PARKED, other))
  local goes_first = other == redis.call('HGET', INFLIGHT, 'seq') or other == sent_lately(redis.call('HGET', PRESENCE, SENT))
  if waits and not goes_first then
    if older(seq, other) then supersede(seq) return false end
    supersede(other)
  end
  redis.call('HSET', COMPACTION, key, seq)
  return true
end

if plain then
  for first = 7, #ARGV, 2000 do -- Lua's stack holds some 8,000 arguments
    local chunk, n = {}, 0
    for i = first, math.min(first + 1999, #ARGV) do
      local seq = ARGV[i]
      chunk[n + 1], chunk[n + 2] = seq, seq
      n = n + 2
    end
    queued = queued + redis.call('ZADD', PENDING, 'NX', unpack(chunk))
  end
else
  for i = 7, #ARGV, compacting and 2 or 1 do
    local seq = ARGV[i]
    local known = redis.call('ZSCORE', PENDING, seq) or redis.call('ZSCORE', DONE, seq) or redis.call('ZSCORE', PARKED, seq)
    if known then
      again = true
    elseif not compacting or compact(seq, ARGV[i + 1]) then
      queued = queued + redis.call('ZADD', PENDING, seq, seq)
    end
  end
  if again and compacting then superseded = redis.call('ZRANGEBYSCORE', DONE, SUPERSEDED, SUPERSEDED) end
end

-- Return 'ready' even if nothing is new, because an earlier caller may have crashed before it woke a dispatcher.
local ready = presence_state(now, presence_ms) == 'here' and redis.call('EXISTS', INFLIGHT) == 0
ready = ready and (queued > 0 or redis.call('EXISTS', PENDING) == 1)
local word = ready and 'ready' or queued > 0 and 'queued' or 'known'
return {word, queued, superseded} -- `superseded` in a list of its own, because it may have more items than Lua's stack
