//! One script that executes every function of the API. Each result is the same in every run.

/// What a step requires of its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Any isolation level.
    Anything,
    /// READ COMMITTED. The step runs inside a block of that level when the default is another
    /// level.
    ReadCommitted,
    /// A single statement outside a transaction block.
    NoBlock,
}

use Needs::{Anything, NoBlock, ReadCommitted};
use idem_testkit::FIX_INSTALLATION;

/// The steps in order. Each step is one transaction. The statements of a step with several
/// statements form one implicit transaction block.
#[rustfmt::skip]
pub const SCRIPT: &[(Needs, &str)] = &[
    // Set-up.
    (ReadCommitted, "SELECT idem_finish_restore(), idem_new_installation()"),
    (ReadCommitted, FIX_INSTALLATION),
    (ReadCommitted, "SELECT idem_configure('orders', '3 days 04:05:06'),
                       idem_set_retention('short', '1 hour 0.5 seconds')"),
    (ReadCommitted, "SELECT idem_configure_retries('orders', 2, '1 millisecond', 2,
                    '2 milliseconds', 0.25, '{no such %}')"),
    (ReadCommitted, "SELECT idem_grant('postgres', 'consumer'),
                            idem_revoke('postgres', 'consumer')"),
    (Anything, "SELECT d.retention = interval '3 days 04:05:06', extract(epoch FROM p.base),
                       p.factor, p.jitter, p.final_errors
                  FROM idem.destination d JOIN idem.retry_policy p ON p.destination = d.id"),
    // Claims.
    (Anything, "SELECT idem_try_claim('m-1', 'orders'), idem_try_claim('m-1', 'orders'),
                       idem_try_claim('00000000-0000-0000-0000-0000000000aa'::uuid, 'orders');
                SELECT 1"),
    (Anything, "SELECT outcome, handled_at IS NULL
                  FROM idem_claim('m-2', 'orders', true, decode('01', 'hex'), now());
                SELECT outcome, handled_at = now()
                  FROM idem_claim('m-2', 'orders', true, decode('02', 'hex'));
                SELECT outcome FROM idem_claim_in_block('m-2', 'orders', true, decode('02', 'hex'));
                SELECT outcome FROM idem_claim('old', 'orders', true, NULL,
                    '2020-02-03T04:05:06.5Z')"),
    (Anything, "SELECT idem_try_claim_batch('{m-1,m-3}', 'orders'),
                       idem_try_claim_uuid_batch('{00000000-0000-0000-0000-0000000000aa}',
                           'orders');
                SELECT 1"),
    (Anything, "SELECT idem_forget('m-3', 'orders'), idem_is_claimed('m-3', 'orders'),
                       idem_is_claimed('m-1', 'orders')"),
    (Anything, "SELECT idem_forbid_commit(); SELECT 1; SELECT idem_allow_commit()"),
    (Anything, r#"SELECT idem_try_claim('m-6', 'orders');
                  SELECT idem_record_effects_batch('{m-6}', 'orders',
                      '[[{"topic": "mail", "payload": 1.25}]]')"#),
    // Effects.
    (Anything, r#"SELECT idem_try_claim('m-4', 'orders');
                  SELECT idem_record_effects('m-4', 'orders',
                      '[{"topic": "mail", "payload": {"at": 1.25, "text": "\\ \" '''' ä"},
                         "key": "k", "type": "T", "headers": {"h": 1.5},
                         "deliver_after": "2020-02-03T04:05:06.5Z"}]')"#),
    (Anything, r#"SELECT idem_try_record('m-5', 'orders',
                      '[{"topic": "mail", "payload_base64": "AFwn/w=="},
                        {"topic": "things", "payload": 2}]')"#),
    (Anything, "SELECT ordinal, topic, key, type, encode(payload, 'hex'), content_type, headers,
                       message_id, extract(epoch FROM deliver_after),
                       recorded_at = (SELECT handled_at FROM idem_claim('m-4', 'orders'))
                  FROM idem_effects('m-4', 'orders')"),
    (Anything, "SELECT ordinal, topic, encode(payload, 'hex'), content_type, message_id
                  FROM idem_effects('m-5', 'orders')"),
    (Anything, "SELECT idem_replay_effects('m-5', 'orders')"),
    (Anything, r#"SELECT idem_send('mail', '{"n": 1e3}'::jsonb,
                      message_id => '00000000-0000-0000-0000-000000000001');
                  SELECT idem_send_bytes('mail', decode('005c27ff', 'hex'), 'k', 'T', '{"h": 1}',
                      '00000000-0000-0000-0000-000000000002', 'text/plain')"#),
    // Relays.
    (ReadCommitted, "SELECT idem_create_relay('second', 2, true)"),
    (Anything, "SELECT idem_relay_partitions('second')"),
    (Anything, "SELECT idem_relay_wait(0) IS NOT NULL"),
    (Anything, "SELECT relay, partition, seq, message_id, topic, key,
                       extract(epoch FROM deliver_after), replay FROM idem.outbox
                 ORDER BY 1, 2, 3"),
    (ReadCommitted, "CREATE TEMP TABLE batch AS SELECT *
                       FROM idem_relay_next('default', 0, 100, '00:00:30.5')"),
    (Anything, "SELECT seq, message_id, topic, key, type, encode(payload, 'hex'), content_type,
                       headers, source_destination FROM batch ORDER BY seq"),
    (ReadCommitted, "SELECT idem_relay_park('default', 0, (SELECT max(token) FROM batch),
                         '00000000-0000-0000-0000-000000000001', 'refused')"),
    (ReadCommitted, "UPDATE batch SET token = n.token
                       FROM (SELECT idem_relay_extend('default', 0, max(token), '1 minute') AS token
                               FROM batch) n"),
    (ReadCommitted, "SELECT idem_relay_ack('default', 0, max(token)) FROM batch"),
    (Anything, "SELECT relay, partition, lag_messages, leased_until IS NULL, delayed, parked, blocks
                  FROM idem.relays ORDER BY 1, 2"),
    (ReadCommitted, "SELECT idem_relay_unpark('default', '00000000-0000-0000-0000-000000000001')"),
    (Anything, "SELECT relay, partition, seq, topic, key, type, error FROM idem.parked"),
    (ReadCommitted, "SELECT idem_relay_unpark_all('default', 'ref%'),
                       idem_relay_discard('default', '00000000-0000-0000-0000-000000000001'),
                       idem_relay_discard_all('default')"),
    (ReadCommitted, "SELECT idem_hand_over('default', '{mail}'),
                            idem_hand_over('second', '{mail}', 0),
                            idem_hand_over('second', '{mail}', 1, 2)"),
    (ReadCommitted, "SELECT idem_hand_over('second', '{}', n % 2) FROM generate_series(1, 4) n"),
    (ReadCommitted, "SELECT idem_drop_relay('second')"),
    (ReadCommitted, "SELECT idem_repair_relays()"),
    // Received messages and their failures.
    (ReadCommitted, "SELECT seq > 0, id, key, type, encode(payload, 'hex'), content_type, headers,
                            attempt FROM idem_next('mail', 10) ORDER BY id"),
    (Anything, r#"SELECT idem_receive('r-1'::text, 'orders', '{"n": 1.5}'::jsonb, '{"h": 1}', NULL,
                      '2020-02-03T04:05:06.5Z', 'T');
                  SELECT idem_receive_bytes('00000000-0000-0000-0000-0000000000bb'::uuid, 'orders',
                      decode('5c00', 'hex'))"#),
    (ReadCommitted, "SELECT idem_next_wait('orders', 0)"),
    (ReadCommitted, "CREATE TEMP TABLE held AS SELECT *
                       FROM idem_next('orders', 2, '1 minute 0.5 seconds')"),
    (Anything, "SELECT id, type, encode(payload, 'hex'), headers, attempt, last_error FROM held
                 ORDER BY id"),
    (ReadCommitted, "SELECT idem_extend(id, 'orders', token, '2 minutes') FROM held
                      WHERE id = 'r-1'"),
    (Anything, "SELECT destination, id, attempt, received FROM idem.leases ORDER BY 1, 2"),
    (Anything, r#"SELECT idem_complete(id, 'orders', token, '[{"topic": "done", "payload": 1}]')
                    FROM held WHERE id = 'r-1'"#),
    (ReadCommitted, "SELECT idem_release(id, 'orders', token, 'no such thing') FROM held
                      WHERE id <> 'r-1'"),
    (Anything, "SELECT destination, id, attempt, encode(payload, 'hex'), last_error
                  FROM idem.dead_letters ORDER BY id"),
    (ReadCommitted, "SELECT idem_requeue('00000000-0000-0000-0000-0000000000bb'::uuid, 'orders')"),
    (ReadCommitted, "SELECT idem_release(id, 'orders', token, 'poison', true)
                       FROM idem_next('orders')"),
    (ReadCommitted, "SELECT idem_requeue_all('orders', 'p%'), idem_discard_all('orders')"),
    (ReadCommitted, "SELECT idem_release(id, 'orders', token, 'poison', true)
                       FROM idem_next('orders')"),
    (ReadCommitted, "SELECT idem_discard('00000000-0000-0000-0000-0000000000bb'::uuid, 'orders')"),
    // Leases of a broker's messages.
    (Anything, "CREATE TEMP TABLE lease AS SELECT *
                  FROM idem_acquire('b-1', 'orders', '30.5 seconds')"),
    (Anything, "SELECT outcome, attempt, retry_after IS NULL, last_error FROM lease"),
    (ReadCommitted, "SELECT idem_release('b-1', 'orders', (SELECT token FROM lease),
                         'slow') < '1 second'"),
    (ReadCommitted, "SELECT idem_bury('b-2', 'orders', token, decode('5c00', 'hex'), 'poison', '{}')
                       FROM idem_acquire('b-2', 'orders')"),
    (ReadCommitted, "SELECT idem_reject('b-3', 'orders', decode('5c00', 'hex'), 'poison', '{}', 'k',
                         'T', 'text/plain', 'queue')"),
    (ReadCommitted, "SELECT idem_reject(NULL::text, 'orders', decode('5c00', 'hex'), 'poison',
                         '{\"n\": 1.50}', source => 'queue')"),
    (ReadCommitted, "SELECT id, headers, encode(payload, 'hex'), last_error FROM idem.dead_letters
                      ORDER BY id"),
    (ReadCommitted, "SELECT idem_forward('b-2', 'orders', 'again'),
                            idem_forward_all('orders', 'again', 'poi%', 1)"),
    (ReadCommitted, "SELECT idem_discard_all('orders', 'poi%')"),
    // The journal.
    (Anything, r#"SELECT state, idempotency_key, attempt
                    FROM idem_begin_call('m-1', 'orders', 'charge', '{"amount": 1.50}')"#),
    (Anything, "SELECT idem_fail_call('m-1', 'orders', 'charge', 'timeout')"),
    (Anything, r#"SELECT state, attempt FROM idem_begin_call('m-1', 'orders', 'charge',
                      '{"amount": 1.50}')"#),
    (Anything, r#"SELECT idem_finish_call('m-1', 'orders', 'charge', '{"paid": 1.50}')"#),
    (Anything, "SELECT step, state, attempt, response, error FROM idem_calls('m-1', 'orders')"),
    // Administration.
    (ReadCommitted, "SELECT idem_configure('unused', '1 day'), idem_remove_destination('unused'),
                            idem_remove_destination('unused')"),
    (ReadCommitted, "SELECT idem_set_message_identity('id_and_destination')"),
    (Anything, "SELECT count(*) FROM idem_rotation_blockers() WHERE ring = 'none'"),
    (NoBlock, "CALL idem_maintain()"),
    (Anything, "SELECT check_name, status FROM idem_health() WHERE check_name <> 'worker'
                 ORDER BY 1"),
    (Anything, "SELECT ring, destination, id, encode(fingerprint, 'hex') FROM idem.inbox
                 ORDER BY 1, 2, 3"),
    (Anything, "SELECT destination, waiting, leased FROM idem.waiting_messages ORDER BY 1"),
    (Anything, "SELECT ring, slice, state, retention = interval '1 hour 0.5 seconds' FROM idem.rings
                 ORDER BY 1, 2"),
    (Anything, "SELECT count(*) > 0 FROM idem.stats"),
];
