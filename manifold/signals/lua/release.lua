-- Frees the idempotency key of a message that was not processed, if this message still holds it.
-- KEYS: idempotency key. ARGV: the value of the key while this message holds it.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 'released'
