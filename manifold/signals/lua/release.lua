-- The message was not processed: its key is free again, if it is still held by this message.
-- KEYS: idempotency key. ARGV: the value by which it is held.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 'released'
