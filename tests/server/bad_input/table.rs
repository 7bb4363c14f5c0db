//! The valid and the invalid arguments of the API functions, and the SQLSTATE of each invalid
//! argument.

/// The state before each test: claims, effects, two relays and a leased batch; two messages that
/// are leased with one token, and two dead letters. Each line is a transaction.
pub const FIXTURE: &[&str] = &[
    "SELECT idem_try_claim('claimed', 'orders'); SELECT idem_create_relay('other', 2)",
    r#"SELECT idem_try_record('recorded', 'orders',
           '[{"topic": "t", "payload": 1}, {"topic": "t", "payload": 2}]')"#,
    "SELECT idem_send('t', '3'::jsonb, message_id => '00000000-0000-0000-0000-000000000001')",
    "SELECT token FROM idem_relay_next('default', 0, 100, '1 day')",
    "SELECT idem_receive('dead'::text, 'orders', '1'::jsonb),
            idem_receive('00000000-0000-0000-0000-00000000dead'::uuid, 'orders', '1'::jsonb)",
    "SELECT idem_release(id, 'orders', token, 'poison', final => true) FROM idem_next('orders', 2)",
    "SELECT idem_receive('held'::text, 'orders', '1'::jsonb),
            idem_receive('00000000-0000-0000-0000-000000000e1d'::uuid, 'orders', '1'::jsonb)",
    "SELECT token FROM idem_next('orders', 2, '1 day')",
];

/// The token of the leased batch.
const TOKEN: &str = "SELECT max(pos) FROM idem.progress WHERE relay = 1";

/// The token of the two leases.
const LEASE: &str = "SELECT max(token) FROM idem.pending WHERE state = 'l'";

/// The arguments of the functions that need a held lease.
const HELD: &[Argument] = &[
    ("id", "text", "'held'"),
    ("id", "uuid", "'00000000-0000-0000-0000-000000000e1d'"),
    ("token", "bigint", LEASE),
];

/// The ids of the dead letters.
const DEAD: &[Argument] = &[
    ("id", "text", "'dead'"),
    ("id", "uuid", "'00000000-0000-0000-0000-00000000dead'"),
];

/// The SQL that must be executed in the same transaction before a function can succeed.
pub const PREPARATIONS: &[(&str, &str)] = &[
    (
        "idem_record_effects",
        "SELECT idem_try_claim('m1'::text, 'orders'),
                idem_try_claim('0192f3a4-0000-7abc-8def-0123456789ab'::uuid, 'orders')",
    ),
    (
        "idem_record_effects_batch",
        "SELECT idem_try_claim('m1'::text, 'orders')",
    ),
    ("idem_allow_commit", "SELECT idem_forbid_commit()"),
    ("idem_finish_call", BEGIN_CALLS),
    ("idem_fail_call", BEGIN_CALLS),
];

const BEGIN_CALLS: &str = "SELECT idem_begin_call('m1'::text, 'orders', 'charge'),
                                  idem_begin_call('0192f3a4-0000-7abc-8def-0123456789ab'::uuid,
                                      'orders', 'charge')";

type Argument = (&'static str, &'static str, &'static str);

/// Valid arguments: name, type, value. The arguments of a named function take precedence over the
/// arguments of `any` function.
pub const VALID: &[(&str, &[Argument])] = &[
    ("idem_create_relay", &[("name", "text", "'new'")]),
    ("idem_extend", HELD),
    ("idem_complete", HELD),
    ("idem_release", HELD),
    ("idem_bury", HELD),
    ("idem_requeue", DEAD),
    ("idem_discard", DEAD),
    ("idem_forward", DEAD),
    ("idem_drop_relay", &[("name", "text", "'other'")]),
    ("idem_remove_destination", &[("name", "text", "'unused'")]),
    ("idem_begin_call", &[("token", "bigint", "NULL")]),
    (
        "idem_grant",
        &[
            ("kind", "text", "'consumer'"),
            ("role", "text", "'postgres'"),
        ],
    ),
    (
        "idem_revoke",
        &[
            ("kind", "text", "'consumer'"),
            ("role", "text", "'postgres'"),
        ],
    ),
    (
        "idem_record_effects_batch",
        &[
            ("ids", "text[]", "ARRAY['m1', 'm1']"),
            (
                "effects",
                "jsonb",
                r#"'[[{"topic": "t", "payload": 1}], []]'"#,
            ),
        ],
    ),
    (
        "idem_set_message_identity",
        &[("identity", "text", "'id_and_destination'")],
    ),
    (
        "idem_set_retention",
        &[
            ("retention", "interval", "'2 hours'"),
            ("ring", "text", "'short'"),
        ],
    ),
    (
        "any",
        &[
            ("id", "text", "'m1'"),
            ("id", "uuid", "'0192f3a4-0000-7abc-8def-0123456789ab'"),
            ("ids", "text[]", "ARRAY['m1', 'm2']"),
            (
                "ids",
                "uuid[]",
                "ARRAY['0192f3a4-0000-7abc-8def-0123456789ab']",
            ),
            ("destination", "text", "'orders'"),
            ("wait", "boolean", "true"),
            ("fingerprint", "bytea", r"'\x01'"),
            ("sent_at", "timestamp with time zone", "now()"),
            ("effects", "jsonb", r#"'[{"topic": "t", "payload": 1}]'"#),
            ("topic", "text", "'t'"),
            ("payload", "jsonb", "'1'"),
            ("payload", "bytea", "'1'"),
            ("key", "text", "'k'"),
            ("type", "text", "'T'"),
            ("headers", "jsonb", "'{}'"),
            (
                "message_id",
                "uuid",
                "'00000000-0000-0000-0000-000000000001'",
            ),
            ("content_type", "text", "'text/plain'"),
        ],
    ),
    (
        "any",
        &[
            ("relay", "text", "'default'"),
            ("partition", "integer", "0"),
            ("max_effects", "integer", "10"),
            ("max_bytes", "bigint", "1000000"),
            ("lease", "interval", "'1 second'"),
            ("token", "bigint", TOKEN),
            ("error", "text", "'refused by the broker'"),
            ("waits_for", "text", "'topic t: no stream'"),
            ("timeout_ms", "integer", "0"),
            ("partitions", "integer", "1"),
            ("from_oldest", "boolean", "false"),
            ("retention", "interval", "'2 days'"),
        ],
    ),
    (
        "any",
        &[
            ("step", "text", "'charge'"),
            ("request", "jsonb", r#"'{"amount": 1}'"#),
            ("response", "json", r#"'{"paid": 1}'"#),
            ("retryable", "boolean", "true"),
            ("final", "boolean", "false"),
            ("deliver_after", "timestamp with time zone", "now()"),
            ("source", "text", "'orders.queue'"),
            ("max_messages", "integer", "10"),
            ("topics", "text[]", "ARRAY['t', 'other']"),
            ("error_like", "text", "'%'"),
            ("max_attempts", "integer", "3"),
            ("base", "interval", "'1 second'"),
            ("factor", "double precision", "2"),
            ("cap", "interval", "'1 minute'"),
            ("jitter", "double precision", "0.2"),
            ("final_errors", "text[]", "ARRAY['no such %']"),
        ],
    ),
];

/// The arguments for which NULL means "none".
pub const NULL_IS_VALID: &[(&str, &str)] = &[
    ("idem_claim", "fingerprint"),
    ("idem_claim", "sent_at"),
    ("idem_claim_in_block", "fingerprint"),
    ("idem_claim_in_block", "sent_at"),
    ("idem_send", "key"),
    ("idem_send", "type"),
    ("idem_send", "headers"),
    ("idem_send", "message_id"),
    ("idem_send", "content_type"),
    ("idem_send_bytes", "key"),
    ("idem_send_bytes", "type"),
    ("idem_send_bytes", "headers"),
    ("idem_send_bytes", "message_id"),
    ("idem_send_bytes", "content_type"),
    ("idem_begin_call", "request"),
    ("idem_begin_call", "token"),
    ("idem_finish_call", "response"),
    ("idem_receive", "headers"),
    ("idem_receive", "key"),
    ("idem_receive", "deliver_after"),
    ("idem_receive", "type"),
    ("idem_receive", "content_type"),
    ("idem_receive_bytes", "headers"),
    ("idem_receive_bytes", "key"),
    ("idem_receive_bytes", "deliver_after"),
    ("idem_receive_bytes", "type"),
    ("idem_receive_bytes", "content_type"),
    ("idem_release", "error"),
    ("idem_relay_extend", "waits_for"),
    ("idem_bury", "headers"),
    ("idem_bury", "key"),
    ("idem_bury", "type"),
    ("idem_bury", "content_type"),
    ("idem_reject", "id"),
    ("idem_reject", "headers"),
    ("idem_reject", "key"),
    ("idem_reject", "type"),
    ("idem_reject", "content_type"),
    ("idem_reject", "source"),
    ("idem_configure_retries", "max_attempts"),
    ("idem_configure_retries", "base"),
    ("idem_configure_retries", "factor"),
    ("idem_configure_retries", "cap"),
    ("idem_configure_retries", "jitter"),
    ("idem_configure_retries", "final_errors"),
];

/// The functions that succeed in a read-only transaction.
pub const READERS: &[&str] = &[
    "idem_is_claimed",
    "idem_effects",
    "idem_calls",
    "idem_health",
    "idem_rotation_blockers",
    "idem_relay_partitions",
    "idem_relay_wait",
    "idem_forbid_commit",
    "idem_allow_commit",
];

/// The functions that need a transaction block.
pub const IN_BLOCK_ONLY: &[&str] = &["idem_claim_in_block"];

/// The functions that must see the newest committed state, so they need READ COMMITTED.
pub const READ_COMMITTED_ONLY: &[&str] = &[
    "idem_relay_next",
    "idem_relay_extend",
    "idem_relay_ack",
    "idem_relay_park",
    "idem_repair_relays",
    "idem_finish_restore",
    "idem_new_installation",
    "idem_maintain",
    "idem_extend",
    "idem_release",
    "idem_bury",
    "idem_reject",
    "idem_next",
    "idem_next_wait",
    "idem_requeue",
    "idem_requeue_all",
    "idem_discard",
    "idem_discard_all",
    "idem_forward",
    "idem_forward_all",
    "idem_hand_over",
    "idem_configure",
    "idem_configure_retries",
    "idem_set_retention",
    "idem_remove_destination",
    "idem_grant",
    "idem_revoke",
    "idem_create_relay",
    "idem_drop_relay",
    "idem_relay_unpark",
    "idem_relay_unpark_all",
    "idem_relay_discard",
    "idem_relay_discard_all",
];

/// An invalid argument and the SQLSTATE of its error.
#[derive(Debug)]
pub struct Bad {
    /// The name of the function, several names separated by spaces, or `any`.
    pub function: &'static str,
    pub argument: &'static str,
    pub of_type: &'static str,
    pub value: &'static str,
    pub sqlstate: &'static str,
}

const fn bad(
    function: &'static str,
    argument: &'static str,
    of_type: &'static str,
    value: &'static str,
    sqlstate: &'static str,
) -> Bad {
    Bad {
        function,
        argument,
        of_type,
        value,
        sqlstate,
    }
}

const fn effects(value: &'static str) -> Bad {
    bad("any", "effects", "jsonb", value, "22023")
}

/// The functions that take a message with its key, type, headers and content type.
const MESSAGE_FUNCTIONS: &str =
    "idem_send idem_send_bytes idem_receive idem_receive_bytes idem_bury idem_reject";

/// The invalid arguments. The test tries NULL for every argument, so NULL is not listed.
pub const BAD: &[Bad] = &[
    // identities
    bad("any", "id", "text", "''", "22023"),
    bad("any", "id", "text", "repeat('x', 1025)", "22023"),
    bad("any", "id", "text", "repeat('é', 513)", "22023"),
    bad("any", "ids", "text[]", "ARRAY['m1', NULL]", "22004"),
    bad("any", "ids", "text[]", "ARRAY['m1', '']", "22023"),
    bad(
        "any",
        "ids",
        "text[]",
        "ARRAY['m1', repeat('x', 1025)]",
        "22023",
    ),
    bad(
        "any",
        "ids",
        "text[]",
        "ARRAY(SELECT n::text FROM generate_series(1, 100001) n)",
        "22023",
    ),
    bad(
        "any",
        "ids",
        "uuid[]",
        "ARRAY[gen_random_uuid(), NULL]",
        "22004",
    ),
    bad(
        "any",
        "ids",
        "uuid[]",
        "ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 100001))",
        "22023",
    ),
    bad("any", "destination", "text", "''", "22023"),
    bad("any", "destination", "text", "repeat('x', 256)", "22023"),
    bad("any", "destination", "text", "repeat('é', 128)", "22023"),
    bad("any", "fingerprint", "bytea", "''", "22023"),
    bad(
        "any",
        "fingerprint",
        "bytea",
        "repeat('x', 65)::bytea",
        "22023",
    ),
    // effects
    effects("'null'"),
    effects("'3'"),
    effects(r#"'"text"'"#),
    effects("'[1]'"),
    effects("'[null]'"),
    effects("'[[]]'"),
    effects("'{}'"),
    effects("'[{}]'"),
    effects(r#"'{"payload": 1}'"#),
    effects(r#"'{"topic": "t"}'"#),
    effects(r#"'{"topic": "", "payload": 1}'"#),
    effects(r#"'{"topic": 7, "payload": 1}'"#),
    effects(r#"'{"topic": null, "payload": 1}'"#),
    effects(r#"jsonb_build_object('topic', repeat('x', 256), 'payload', 1)"#),
    effects(r#"'{"topic": "t", "payload": 1, "payload_base64": ""}'"#),
    effects(r#"'{"topic": "t", "payload_base64": "not base64"}'"#),
    effects(r#"'{"topic": "t", "payload_base64": "AA"}'"#),
    effects(r#"'{"topic": "t", "payload_base64": 7}'"#),
    effects(r#"'{"topic": "t", "payload": 1, "tpoic": "t"}'"#),
    effects(r#"'{"topic": "t", "payload": 1, "Key": "k"}'"#),
    effects(r#"'{"topic": "t", "payload": 1, "key": ""}'"#),
    effects(r#"'{"topic": "t", "payload": 1, "key": 1}'"#),
    effects(r#"jsonb_build_object('topic', 't', 'payload', 1, 'key', repeat('x', 1025))"#),
    effects(r#"'{"topic": "t", "payload": 1, "type": ""}'"#),
    effects(r#"jsonb_build_object('topic', 't', 'payload', 1, 'type', repeat('x', 256))"#),
    effects(r#"'{"topic": "t", "payload": 1, "content_type": ""}'"#),
    effects(r#"jsonb_build_object('topic', 't', 'payload', 1, 'content_type', repeat('x', 256))"#),
    effects(r#"'{"topic": "t", "payload": 1, "headers": []}'"#),
    effects(r#"'{"topic": "t", "payload": 1, "headers": "h"}'"#),
    effects(r#"'{"topic": "t", "payload": 1, "headers": {"traceparent": 1}}'"#),
    effects(
        r#"jsonb_build_object('topic', 't', 'payload', 1, 'headers',
               jsonb_build_object('traceparent', repeat('x', 256)))"#,
    ),
    effects(r#"'{"topic": "t", "payload": 1, "message_id": "x"}'"#),
    effects(r#"'{"topic": "t", "payload": 1, "deliver_after": "tomorrow"}'"#),
    effects(r#"'{"topic": "t", "payload": 1, "deliver_after": "2030-01-01 00:00:00"}'"#),
    effects(r#"'{"topic": "t", "payload": 1, "deliver_after": 1893456000}'"#),
    effects(
        "(SELECT jsonb_agg(jsonb_build_object('topic', 't', 'payload', n))
           FROM generate_series(1, 10001) n)",
    ),
    // sends
    bad("idem_send idem_send_bytes", "topic", "text", "''", "22023"),
    bad(
        "idem_send idem_send_bytes",
        "topic",
        "text",
        "repeat('x', 256)",
        "22023",
    ),
    bad(MESSAGE_FUNCTIONS, "key", "text", "''", "22023"),
    bad(
        MESSAGE_FUNCTIONS,
        "key",
        "text",
        "repeat('x', 1025)",
        "22023",
    ),
    bad(MESSAGE_FUNCTIONS, "type", "text", "''", "22023"),
    bad(
        MESSAGE_FUNCTIONS,
        "type",
        "text",
        "repeat('x', 256)",
        "22023",
    ),
    bad(MESSAGE_FUNCTIONS, "headers", "jsonb", "'[]'", "22023"),
    bad(MESSAGE_FUNCTIONS, "headers", "jsonb", "'null'", "22023"),
    bad(
        "idem_send idem_send_bytes idem_receive idem_receive_bytes",
        "headers",
        "jsonb",
        r#"'{"traceparent": 1}'"#,
        "22023",
    ),
    bad(MESSAGE_FUNCTIONS, "content_type", "text", "''", "22023"),
    bad(
        MESSAGE_FUNCTIONS,
        "content_type",
        "text",
        "repeat('x', 256)",
        "22023",
    ),
    // relays
    bad("any", "relay", "text", "'unknown'", "42704"),
    bad("any", "partition", "integer", "-1", "22023"),
    bad("any", "partition", "integer", "1", "22023"),
    bad("any", "max_effects", "integer", "0", "22023"),
    bad("any", "max_effects", "integer", "10001", "22023"),
    bad("any", "max_bytes", "bigint", "0", "22023"),
    bad("any", "max_bytes", "bigint", "1073741825", "22023"),
    bad("any", "lease", "interval", "'0'", "22023"),
    bad("any", "token", "bigint", "-1", "55000"),
    bad(
        "idem_relay_park",
        "message_id",
        "uuid",
        "gen_random_uuid()",
        "22023",
    ),
    bad("any", "timeout_ms", "integer", "-1", "22023"),
    bad("any", "partitions", "integer", "0", "22023"),
    bad("idem_create_relay", "name", "text", "'default'", "42710"),
    bad("idem_drop_relay", "name", "text", "'unknown'", "42704"),
    // external calls
    bad("any", "step", "text", "''", "22023"),
    bad("any", "step", "text", "repeat('x', 256)", "22023"),
    bad("any", "step", "text", "repeat('é', 128)", "22023"),
    bad(
        "idem_finish_call idem_fail_call",
        "step",
        "text",
        "'not begun'",
        "55000",
    ),
    // leases, inbox and retries
    bad(
        "idem_extend idem_complete idem_release idem_bury",
        "id",
        "text",
        "'not held'",
        "55000",
    ),
    bad(
        "idem_extend idem_complete idem_release idem_bury",
        "id",
        "uuid",
        "gen_random_uuid()",
        "55000",
    ),
    bad(
        "idem_extend idem_complete idem_release idem_bury",
        "destination",
        "text",
        "'elsewhere'",
        "55000",
    ),
    bad("idem_reject", "source", "text", "''", "22023"),
    bad(
        "idem_reject",
        "source",
        "text",
        "repeat('x', 1025)",
        "22023",
    ),
    bad("any", "max_messages", "integer", "0", "22023"),
    bad("any", "max_messages", "integer", "10001", "22023"),
    bad("any", "topics", "text[]", "ARRAY['t', NULL]", "22004"),
    bad("any", "error_like", "text", r"'100%\'", "22023"),
    bad("any", "max_attempts", "integer", "0", "22023"),
    bad("any", "max_attempts", "integer", "1001", "22023"),
    bad("any", "base", "interval", "'-1 second'", "22023"),
    bad("any", "base", "interval", "'25 hours'", "22023"),
    bad("any", "base", "interval", "'2 minutes'", "22023"),
    bad("any", "cap", "interval", "'0'", "22023"),
    bad("any", "cap", "interval", "'31 days'", "22023"),
    bad("any", "factor", "double precision", "0.5", "22023"),
    bad("any", "factor", "double precision", "1001", "22023"),
    bad("any", "factor", "double precision", "'NaN'", "22023"),
    bad("any", "jitter", "double precision", "-0.1", "22023"),
    bad("any", "jitter", "double precision", "1.1", "22023"),
    bad("any", "jitter", "double precision", "'NaN'", "22023"),
    bad(
        "any",
        "final_errors",
        "text[]",
        "ARRAY['fine', NULL]",
        "22004",
    ),
    bad(
        "any",
        "final_errors",
        "text[]",
        r"ARRAY['fine', 'not fine\']",
        "22023",
    ),
    // administration
    bad("any", "retention", "interval", "'0'", "22023"),
    bad("idem_remove_destination", "name", "text", "''", "22023"),
    bad(
        "idem_remove_destination",
        "name",
        "text",
        "repeat('x', 256)",
        "22023",
    ),
    bad(
        "idem_remove_destination",
        "name",
        "text",
        "'orders'",
        "55000",
    ),
    bad(
        "idem_set_message_identity",
        "identity",
        "text",
        "''",
        "22023",
    ),
    bad(
        "idem_set_message_identity",
        "identity",
        "text",
        "'destination'",
        "22023",
    ),
    bad(
        "idem_set_message_identity",
        "identity",
        "text",
        "'id'",
        "55000",
    ),
    bad("idem_set_retention", "ring", "text", "'outbox'", "22023"),
    bad(
        "idem_grant idem_revoke",
        "kind",
        "text",
        "'superuser'",
        "22023",
    ),
    // further limits
    bad("any", "max_effects", "integer", "10001", "22023"),
    bad("any", "lease", "interval", "'25 hours'", "22023"),
    bad("any", "lease", "interval", "'-1 second'", "22023"),
    bad("any", "token", "bigint", "9223372036854775807", "55000"),
    bad("any", "timeout_ms", "integer", "60001", "22023"),
    bad("any", "partitions", "integer", "257", "22023"),
    bad("idem_create_relay", "name", "text", "''", "22023"),
    bad(
        "idem_create_relay",
        "name",
        "text",
        "repeat('x', 256)",
        "22023",
    ),
    bad("idem_drop_relay", "name", "text", "''", "42704"),
    bad("any", "retention", "interval", "'-1 day'", "22023"),
    bad("any", "retention", "interval", "'11 years'", "22023"),
    bad("idem_set_retention", "ring", "text", "''", "22023"),
    bad(
        "idem_grant idem_revoke",
        "role",
        "text",
        "'no such role'",
        "42704",
    ),
];
