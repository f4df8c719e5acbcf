-- must_end.lua: the pending and parked entries, oldest first, that must not be sent any more. Changes nothing.
-- returns {'must_end', seq, how, attempts, …}
local now, retention_ms = tonumber(ARGV[1]), tonumber(ARGV[5])
local found = must_end(PENDING, now, retention_ms)
for place, part in ipairs(must_end(PARKED, now, retention_ms)) do
  if place > 1 then found[#found + 1] = part end
end
return found
