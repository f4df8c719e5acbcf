-- must_end.lua: list pending and parked entries, oldest first, that may no longer be sent. Changes nothing.
-- returns {'must_end', seq, how, attempts, …}
local now, retention_ms = tonumber(ARGV[1]), tonumber(ARGV[5])
local found = must_end(PENDING, now, retention_ms)
for place, part in ipairs(must_end(PARKED, now, retention_ms)) do
  if place > 1 then found[#found + 1] = part end
end
return found
