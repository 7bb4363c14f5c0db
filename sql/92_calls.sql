-- The comments of the functions that are written in Rust. The declarations of these functions are
-- generated from the code.

COMMENT ON FUNCTION idem_try_claim(text, text) IS
    'Claims a message (id of 1 to 1,024 bytes) for a destination (1 to 255 bytes). Returns true '
    'if this transaction is the first: process the message. Returns false if the message is a '
    'duplicate. Waits for a concurrent claimer, and returns false when that transaction commits. '
    'Errors: 22004 (null argument), 22023 (invalid argument), 23000 (another id has the same '
    'key), 25006 (standby or read-only transaction), 25P01 (idem.lone_claims), 55P03 (the message '
    'is leased).';
COMMENT ON FUNCTION idem_try_claim(uuid, text) IS
    'Claims a message (id of 1 to 1,024 bytes) for a destination (1 to 255 bytes). Returns true '
    'if this transaction is the first: process the message. Returns false if the message is a '
    'duplicate. Waits for a concurrent claimer, and returns false when that transaction commits. '
    'Errors: 22004 (null argument), 22023 (invalid argument), 23000 (another id has the same '
    'key), 25006 (standby or read-only transaction), 25P01 (idem.lone_claims), 55P03 (the message '
    'is leased).';
COMMENT ON FUNCTION idem_try_claim_batch(text[], text) IS
    'Claims up to 100,000 messages of one destination. Returns true or false for each id, as '
    'idem_try_claim does, at the position of the id. The second of two equal ids is a duplicate. '
    'Two batches never deadlock. Errors: 22004 (null argument), 22023 (invalid argument), 23000 '
    '(another id has the same key), 25006 (standby or read-only transaction), 25P01 '
    '(idem.lone_claims), 55P03 (the message is leased).';
COMMENT ON FUNCTION idem_try_claim_uuid_batch(uuid[], text) IS
    'Claims up to 100,000 messages of one destination. Returns true or false for each id, as '
    'idem_try_claim does, at the position of the id. The second of two equal ids is a duplicate. '
    'Two batches never deadlock. Errors: 22004 (null argument), 22023 (invalid argument), 23000 '
    '(another id has the same key), 25006 (standby or read-only transaction), 25P01 '
    '(idem.lone_claims), 55P03 (the message is leased).';
COMMENT ON FUNCTION idem_claim(text, text, boolean, bytea, timestamptz) IS
    'Claims a message for a destination and returns details. outcome: claimed, duplicate, '
    'in_progress (only if wait is false), mismatch (processed with another fingerprint), or '
    'expired (sent_at is before the time since which the ring remembers claims). handled_at: the '
    'time of the first claim. fingerprint: 1 to 64 bytes. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 23000 (another id has the same key), 25006 (standby or read-only '
    'transaction), 25P01 (idem.lone_claims), 55P03 (the message is leased).';
COMMENT ON FUNCTION idem_claim_in_block(text, text, boolean, bytea, timestamptz) IS
    'Does the same as idem_claim, but fails outside a transaction block whatever the setting '
    'idem.lone_claims is. For a client that sends BEGIN and the claim without waiting in between. '
    'Use it in a statement of its own: a PL/pgSQL block with EXCEPTION counts as a transaction '
    'block. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (another id has the '
    'same key), 25006 (standby or read-only transaction), 25P01 (no transaction block), 55P03 '
    '(the message is leased).';
COMMENT ON FUNCTION idem_claim(uuid, text, boolean, bytea, timestamptz) IS
    'Claims a message for a destination and returns details. outcome: claimed, duplicate, '
    'in_progress (only if wait is false), mismatch (processed with another fingerprint), or '
    'expired (sent_at is before the time since which the ring remembers claims). handled_at: the '
    'time of the first claim. fingerprint: 1 to 64 bytes. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 23000 (another id has the same key), 25006 (standby or read-only '
    'transaction), 25P01 (idem.lone_claims), 55P03 (the message is leased).';
COMMENT ON FUNCTION idem_claim_in_block(uuid, text, boolean, bytea, timestamptz) IS
    'Does the same as idem_claim, but fails outside a transaction block whatever the setting '
    'idem.lone_claims is. For a client that sends BEGIN and the claim without waiting in between. '
    'Use it in a statement of its own: a PL/pgSQL block with EXCEPTION counts as a transaction '
    'block. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (another id has the '
    'same key), 25006 (standby or read-only transaction), 25P01 (no transaction block), 55P03 '
    '(the message is leased).';
COMMENT ON FUNCTION idem_is_claimed(text, text) IS
    'Returns whether a committed transaction or the current one has claimed the message. Writes '
    'nothing, and works on a standby. Errors: 22004 (null argument), 22023 (invalid argument), '
    '23000 (another id has the same key).';
COMMENT ON FUNCTION idem_is_claimed(uuid, text) IS
    'Returns whether a committed transaction or the current one has claimed the message. Writes '
    'nothing, and works on a standby. Errors: 22004 (null argument), 22023 (invalid argument), '
    '23000 (another id has the same key).';
COMMENT ON FUNCTION idem_forget(text, text) IS
    'Forgets a claim, so that the message can be processed again. Returns false if there is no '
    'claim. The effects stay in the outbox. Errors: 22004 (null argument), 22023 (invalid '
    'argument), 23000 (another id has the same key), 25006 (standby or read-only transaction), '
    '55000 (the current transaction made the claim).';
COMMENT ON FUNCTION idem_forget(uuid, text) IS
    'Forgets a claim, so that the message can be processed again. Returns false if there is no '
    'claim. The effects stay in the outbox. Errors: 22004 (null argument), 22023 (invalid '
    'argument), 23000 (another id has the same key), 25006 (standby or read-only transaction), '
    '55000 (the current transaction made the claim).';
COMMENT ON FUNCTION idem_record_effects(text, text, jsonb) IS
    'Records effects with the claim that the current transaction holds, and returns their message '
    'ids. effects: an array of objects, or one object, with the members topic, payload or '
    'payload_base64, and optionally content_type, key, type, headers, message_id and '
    'deliver_after (RFC 3339). At most 10,000 effects. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 23000 (another id has the same key), 25006 (standby or read-only '
    'transaction), 55000 (no claim in this transaction).';
COMMENT ON FUNCTION idem_record_effects(uuid, text, jsonb) IS
    'Records effects with the claim that the current transaction holds, and returns their message '
    'ids. effects: an array of objects, or one object, with the members topic, payload or '
    'payload_base64, and optionally content_type, key, type, headers, message_id and '
    'deliver_after (RFC 3339). At most 10,000 effects. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 23000 (another id has the same key), 25006 (standby or read-only '
    'transaction), 55000 (no claim in this transaction).';
COMMENT ON FUNCTION idem_try_record(text, text, jsonb) IS
    'Claims a message and records its effects, as idem_try_claim and idem_record_effects do. '
    'Returns false, and records nothing, if the message is a duplicate. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 23000 (another id has the same key), 25006 (standby or '
    'read-only transaction), 55P03 (the message is leased).';
COMMENT ON FUNCTION idem_try_record(uuid, text, jsonb) IS
    'Claims a message and records its effects, as idem_try_claim and idem_record_effects do. '
    'Returns false, and records nothing, if the message is a duplicate. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 23000 (another id has the same key), 25006 (standby or '
    'read-only transaction), 55P03 (the message is leased).';
COMMENT ON FUNCTION idem_effects(text, text) IS
    'Returns the effects that the first execution of the message recorded, in order and byte for '
    'byte. The result is current at every isolation level. Works on a standby. Errors: 22004 '
    '(null argument), 22023 (invalid argument), 23000 (another id has the same key).';
COMMENT ON FUNCTION idem_effects(uuid, text) IS
    'Returns the effects that the first execution of the message recorded, in order and byte for '
    'byte. The result is current at every isolation level. Works on a standby. Errors: 22004 '
    '(null argument), 22023 (invalid argument), 23000 (another id has the same key).';
COMMENT ON FUNCTION idem_replay_effects(text, text) IS
    'Copies the recorded effects of a message into the outbox again, with the same message ids. '
    'Returns their number. Errors: 22004 (null argument), 22023 (invalid argument), 23000 '
    '(another id has the same key), 25006 (standby or read-only transaction).';
COMMENT ON FUNCTION idem_replay_effects(uuid, text) IS
    'Copies the recorded effects of a message into the outbox again, with the same message ids. '
    'Returns their number. Errors: 22004 (null argument), 22023 (invalid argument), 23000 '
    '(another id has the same key), 25006 (standby or read-only transaction).';
COMMENT ON FUNCTION idem_send(text, jsonb, text, text, jsonb, uuid, text) IS
    'Sends a message with a JSON payload that does not result from another message, when the '
    'current transaction commits. Returns its message id. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 25006 (standby or read-only transaction).';
COMMENT ON FUNCTION idem_send_bytes(text, bytea, text, text, jsonb, uuid, text) IS
    'Sends a message with a payload of bytes that does not result from another message, when the '
    'current transaction commits. Returns its message id. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 25006 (standby or read-only transaction).';
COMMENT ON FUNCTION idem_acquire(text, text, interval) IS
    'Leases a message for processing outside the transaction: commit, process the message, then '
    'call idem_complete with the token. outcome: see the type idem_lease_outcome. attempt counts '
    'this lease. After in_progress retry after retry_after; a received message is in_progress '
    'too, because idem_next returns it. lease: 1 millisecond to 1 day. Never waits, at any '
    'isolation level. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (another id '
    'has the same key), 25006 (standby or read-only transaction).';
COMMENT ON FUNCTION idem_acquire(uuid, text, interval) IS
    'Leases a message for processing outside the transaction: commit, process the message, then '
    'call idem_complete with the token. outcome: see the type idem_lease_outcome. attempt counts '
    'this lease. After in_progress retry after retry_after; a received message is in_progress '
    'too, because idem_next returns it. lease: 1 millisecond to 1 day. Never waits, at any '
    'isolation level. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (another id '
    'has the same key), 25006 (standby or read-only transaction).';
COMMENT ON FUNCTION idem_complete(text, text, bigint, jsonb) IS
    'Turns the lease that the token proves into the claim, and records the effects, in the '
    'current transaction. Returns the message ids of the effects. Errors: 22004 (null argument), '
    '22023 (invalid argument), 23000 (another id has the same key), 25006 (standby or read-only '
    'transaction), 55000 (the lease is lost; nothing is written), 55P03 (the lease expired, and a '
    'running transaction has claimed the message).';
COMMENT ON FUNCTION idem_complete(uuid, text, bigint, jsonb) IS
    'Turns the lease that the token proves into the claim, and records the effects, in the '
    'current transaction. Returns the message ids of the effects. Errors: 22004 (null argument), '
    '22023 (invalid argument), 23000 (another id has the same key), 25006 (standby or read-only '
    'transaction), 55000 (the lease is lost; nothing is written), 55P03 (the lease expired, and a '
    'running transaction has claimed the message).';
COMMENT ON FUNCTION idem_receive(text, text, jsonb, jsonb, text, timestamptz, text, text) IS
    'Stores a message in the durable inbox, to be processed later. Acknowledge the message to its '
    'broker after the commit. Returns false, and stores nothing, if the message is known: '
    'received, leased, dead or claimed. key: messages with the same key are processed one at a '
    'time, in the order of arrival. deliver_after: idem_next does not return the message before '
    'this time. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (another id has '
    'the same key), 25006 (standby or read-only transaction).';
COMMENT ON FUNCTION idem_receive(uuid, text, jsonb, jsonb, text, timestamptz, text, text) IS
    'Stores a message in the durable inbox, to be processed later. Acknowledge the message to its '
    'broker after the commit. Returns false, and stores nothing, if the message is known: '
    'received, leased, dead or claimed. key: messages with the same key are processed one at a '
    'time, in the order of arrival. deliver_after: idem_next does not return the message before '
    'this time. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (another id has '
    'the same key), 25006 (standby or read-only transaction).';
COMMENT ON FUNCTION idem_receive_bytes(text, text, bytea, jsonb, text, timestamptz, text, text) IS
    'Stores a message in the durable inbox, to be processed later. Acknowledge the message to its '
    'broker after the commit. Returns false, and stores nothing, if the message is known: '
    'received, leased, dead or claimed. key: messages with the same key are processed one at a '
    'time, in the order of arrival. deliver_after: idem_next does not return the message before '
    'this time. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (another id has '
    'the same key), 25006 (standby or read-only transaction).';
COMMENT ON FUNCTION idem_receive_bytes(uuid, text, bytea, jsonb, text, timestamptz, text, text) IS
    'Stores a message in the durable inbox, to be processed later. Acknowledge the message to its '
    'broker after the commit. Returns false, and stores nothing, if the message is known: '
    'received, leased, dead or claimed. key: messages with the same key are processed one at a '
    'time, in the order of arrival. deliver_after: idem_next does not return the message before '
    'this time. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (another id has '
    'the same key), 25006 (standby or read-only transaction).';
COMMENT ON FUNCTION idem_begin_call(text, text, text, jsonb, bigint) IS
    'Begins a step (1 to 255 bytes) of a message that is an external call: commit, then send the '
    'request with idempotency_key, which is the same for every attempt. state: new (send the '
    'request), unknown (an earlier attempt may have had its effect; begun_at is the time of the '
    'first such attempt), done (response is the recorded response), failed (the call failed for '
    'good with this error). attempt: the number of this attempt. Waits for a concurrent caller. '
    'token: that of the lease under which the message is processed. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 23000 (the step was begun with another request), 25006 '
    '(standby or read-only transaction), 55000 (the token does not hold the lease).';
COMMENT ON FUNCTION idem_begin_call(uuid, text, text, jsonb, bigint) IS
    'Begins a step (1 to 255 bytes) of a message that is an external call: commit, then send the '
    'request with idempotency_key, which is the same for every attempt. state: new (send the '
    'request), unknown (an earlier attempt may have had its effect; begun_at is the time of the '
    'first such attempt), done (response is the recorded response), failed (the call failed for '
    'good with this error). attempt: the number of this attempt. Waits for a concurrent caller. '
    'token: that of the lease under which the message is processed. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 23000 (the step was begun with another request), 25006 '
    '(standby or read-only transaction), 55000 (the token does not hold the lease).';
COMMENT ON FUNCTION idem_finish_call(text, text, text, jsonb) IS
    'Records the response of an external call that was begun. Every later attempt gets this '
    'response. Recording the same response again changes nothing. Errors: 22004 (null argument), '
    '22023 (invalid argument), 25006 (standby or read-only transaction), 55000 (not begun, or '
    'ended with another result).';
COMMENT ON FUNCTION idem_finish_call(uuid, text, text, jsonb) IS
    'Records the response of an external call that was begun. Every later attempt gets this '
    'response. Recording the same response again changes nothing. Errors: 22004 (null argument), '
    '22023 (invalid argument), 25006 (standby or read-only transaction), 55000 (not begun, or '
    'ended with another result).';
COMMENT ON FUNCTION idem_fail_call(text, text, text, text, boolean) IS
    'Records that an attempt of an external call failed. error: at most 8,192 bytes. retryable: '
    'true if the attempt certainly had no effect. It is then taken back, and the call is new '
    'again unless an earlier attempt may have had its effect. false: the call failed for good and '
    'is never repeated. Errors: 22004 (null argument), 22023 (invalid argument), 25006 (standby '
    'or read-only transaction), 55000 (not begun, or ended with another result).';
COMMENT ON FUNCTION idem_fail_call(uuid, text, text, text, boolean) IS
    'Records that an attempt of an external call failed. error: at most 8,192 bytes. retryable: '
    'true if the attempt certainly had no effect. It is then taken back, and the call is new '
    'again unless an earlier attempt may have had its effect. false: the call failed for good and '
    'is never repeated. Errors: 22004 (null argument), 22023 (invalid argument), 25006 (standby '
    'or read-only transaction), 55000 (not begun, or ended with another result).';
COMMENT ON FUNCTION idem_calls(text, text) IS
    'Returns the external calls of a message, in the order in which they were first begun. The '
    'result is current at every isolation level. Works on a standby. Errors: 22004 (null '
    'argument), 22023 (invalid argument).';
COMMENT ON FUNCTION idem_calls(uuid, text) IS
    'Returns the external calls of a message, in the order in which they were first begun. The '
    'result is current at every isolation level. Works on a standby. Errors: 22004 (null '
    'argument), 22023 (invalid argument).';
COMMENT ON FUNCTION idem_relay_wait(integer) IS
    'Waits at most timeout_ms milliseconds for effects that this session has not waited for '
    'before. Returns true if there may be such effects. A relay calls this function when '
    'idem_relay_next has returned no row. Errors: 22004 (null argument), 22023 (invalid argument).';
COMMENT ON FUNCTION idem_next_wait(text, integer) IS
    'Waits at most timeout_ms milliseconds until idem_next can return a message of the '
    'destination. Returns true if it can. Errors: 22004 (null argument), 22023 (invalid '
    'argument), 25000 (not READ COMMITTED), 25006 (standby or read-only transaction).';
COMMENT ON FUNCTION idem.key_of(text) IS 'Returns the key of a message id. Errors: 22004, 22023.';
COMMENT ON FUNCTION idem.find_destination(text) IS
    'Returns the id of a destination; null if it was never used. Errors: 22004, 22023.';
COMMENT ON FUNCTION idem.intern_destination(text) IS
    'Returns the id of a destination, which is created if it is new. Errors: 22004, 22023, 25006.';
COMMENT ON FUNCTION idem.note_pending(bigint) IS
    'Records in shared memory that a message may be pending. Always returns true, for the CHECK '
    'constraints of the tables.';
COMMENT ON FUNCTION idem.pending_presence() IS
    'Returns what shared memory records about pending messages: some, quiet (the last pass found '
    'none) or none.';
COMMENT ON FUNCTION idem.set_pending_presence(text) IS
    'Records quiet, or none after quiet. The caller of none must hold ACCESS EXCLUSIVE on both '
    'tables.';
COMMENT ON FUNCTION idem.claim_state(text, text) IS
    'Returns free, claimed, or in_progress if a running transaction is claiming the message.';
COMMENT ON FUNCTION idem.enter_pending() IS
    'Returns the number of the current table of pending messages, and locks it for writing until '
    'the end of the transaction.';
COMMENT ON FUNCTION idem.record_letter(text, text, text, bytea, text, text, jsonb, text, text) IS
    'Records a dead letter as an effect of its message, which the current transaction has '
    'claimed, and returns the message id of the effect. Errors: 22004, 22023, 23000, 25006, 55000 '
    '(no claim).';
COMMENT ON FUNCTION idem.note_failure(jsonb, integer, text, boolean) IS
    'Returns the errors of a message with another error at the end. The newest 100 errors are '
    'kept, with at most 2,000 bytes each.';
COMMENT ON FUNCTION idem.note_expired_lease(jsonb, integer) IS
    'Returns the errors of a message with the error of an attempt that ended because its lease '
    'expired.';
COMMENT ON FUNCTION idem.is_last_failure(jsonb, integer, text) IS
    'Returns whether the newest error of a message is this error of this attempt.';
COMMENT ON FUNCTION idem.default_max_attempts() IS
    'Returns the number of attempts of a message, unless idem_configure_retries sets another '
    'number.';
COMMENT ON FUNCTION idem_next(text, integer, interval, bigint) IS
    'Leases due messages of the durable inbox of a destination, and returns them in order. '
    'Returns at most max_messages messages (1 to 10,000) with at most max_bytes bytes of payloads '
    'and headers (1 to 1 GB), but the first message whatever its size. A smaller result does not '
    'mean that no other message is due. A message that does not fit is not leased, but its row '
    'stays locked until the transaction ends. Of the messages with one key only the first is '
    'returned, and none while another one is leased or waits for a retry. A message with an '
    'expired lease (lease_expired) is returned alone. Finish each message with idem_complete, or '
    'with idem_try_claim in the business transaction, or release it with idem_release. A message '
    'that is not finished is returned again after its lease, until no attempt is left. lease: 1 '
    'millisecond to 1 day. Errors: 22004 (null argument), 22023 (invalid argument), 25000 (not '
    'READ COMMITTED), 25006 (standby or read-only transaction).';
COMMENT ON FUNCTION idem.tell_receivers() IS
    'Wakes the sessions that wait for messages when the current transaction commits.';
COMMENT ON FUNCTION idem.fence(text, boolean) IS
    'Returns true when every transaction that held a claim when this step was first checked has '
    'ended. wait: wait for these transactions for some time before returning false.';
COMMENT ON FUNCTION idem.invalidate(oid) IS
    'Makes every backend read this table again at its next claim.';
COMMENT ON FUNCTION idem.ran() IS
    'Returns the current reading of the clock of the rings: see idem.clock.';
COMMENT ON FUNCTION idem.monotonic() IS 'Returns the monotonic clock of the system.';
COMMENT ON FUNCTION idem.next_xid() IS
    'Returns the next transaction id. All running transactions have lower ids.';
COMMENT ON FUNCTION idem.counters() IS 'Returns the rows of the view idem.stats.';
COMMENT ON FUNCTION idem.worker_state() IS 'Returns the state of the worker for idem_health.';
