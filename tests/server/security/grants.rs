//! Tests of the privileges of roles: a role has only the privileges that `idem_grant` gave it.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use idem_testkit::{Database, Session};

use super::functions;

/// The names of the functions that each kind of role may execute.
const KINDS: &[(&str, &[&str])] = &[
    (
        "consumer",
        &[
            "idem_try_claim",
            "idem_try_claim_batch",
            "idem_try_claim_uuid_batch",
            "idem_claim",
            "idem_claim_in_block",
            "idem_is_claimed",
            "idem_forbid_commit",
            "idem_allow_commit",
            "idem_record_effects",
            "idem_record_effects_batch",
            "idem_try_record",
            "idem_effects",
            "idem_replay_effects",
            "idem_send",
            "idem_send_bytes",
            "idem_begin_call",
            "idem_finish_call",
            "idem_fail_call",
            "idem_calls",
            "idem_acquire",
            "idem_extend",
            "idem_complete",
            "idem_release",
            "idem_bury",
            "idem_reject",
            "idem_receive",
            "idem_receive_bytes",
            "idem_next",
            "idem_next_wait",
        ],
    ),
    (
        "receiver",
        &["idem_receive", "idem_receive_bytes", "idem_is_claimed"],
    ),
    (
        "operator",
        &[
            "idem_requeue",
            "idem_requeue_all",
            "idem_discard",
            "idem_discard_all",
            "idem_forward",
            "idem_forward_all",
            "idem_relay_unpark",
            "idem_relay_unpark_all",
            "idem_relay_discard",
            "idem_relay_discard_all",
            "idem_health",
            "idem_is_claimed",
        ],
    ),
    (
        "relay",
        &[
            "idem_relay_partitions",
            "idem_relay_next",
            "idem_relay_extend",
            "idem_relay_ack",
            "idem_relay_park",
            "idem_relay_wait",
            "idem_hand_over",
        ],
    ),
    (
        "monitor",
        &["idem_health", "idem_is_claimed", "idem_rotation_blockers"],
    ),
    (
        "admin",
        &[
            "idem_forget",
            "idem_configure",
            "idem_remove_destination",
            "idem_set_message_identity",
            "idem_set_retention",
            "idem_grant",
            "idem_revoke",
            "idem_maintain",
            "idem_create_relay",
            "idem_drop_relay",
            "idem_relay_unpark",
            "idem_relay_unpark_all",
            "idem_relay_discard",
            "idem_relay_discard_all",
            "idem_repair_relays",
            "idem_finish_restore",
            "idem_new_installation",
            "idem_rotation_blockers",
            "idem_health",
            "idem_configure_retries",
            "idem_requeue",
            "idem_requeue_all",
            "idem_discard",
            "idem_discard_all",
            "idem_forward",
            "idem_forward_all",
        ],
    ),
];

/// Returns the views that each kind can read. A monitor cannot read `dead_letters`, because this
/// view shows the payloads of messages.
fn views(kind: &str) -> &'static [&'static str] {
    match kind {
        "relay" => &["parked"],
        "operator" => &[
            "leases",
            "waiting_claims",
            "waiting_messages",
            "dead_letters",
            "parked",
        ],
        "monitor" => &[
            "inbox",
            "outbox",
            "relays",
            "rings",
            "stats",
            "filters",
            "leases",
            "waiting_claims",
            "waiting_messages",
            "parked",
        ],
        "admin" => &[
            "inbox",
            "outbox",
            "relays",
            "rings",
            "stats",
            "filters",
            "leases",
            "waiting_claims",
            "waiting_messages",
            "dead_letters",
            "parked",
        ],
        _ => &[],
    }
}

/// The functions that `idem_maintain` calls with the privileges of its caller.
const FOR_MAINTENANCE: [&str; 4] = [
    "check_preloaded",
    "maintain_step",
    "maintenance_steps",
    "wait_at_fence",
];

/// The function in the CHECK constraints of the pending messages. PostgreSQL executes it as the
/// role that writes, so every role may execute it. The function returns true.
const FOR_CONSTRAINTS: &str = "note_pending";

/// I9: PUBLIC and a role without grants can execute no function and read or write no table.
#[tokio::test]
async fn i9_public_has_no_privilege() -> Result<()> {
    let db = Database::with_idem("public").await?;
    let session = db.connect().await?;
    assert_eq!(
        session
            .text(
                "SELECT f.oid::regprocedure::text FROM pg_proc f
                   JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = f.oid
                    AND d.deptype = 'e'
                   JOIN pg_extension x ON d.refclassid = 'pg_extension'::regclass
                    AND x.oid = d.refobjid AND x.extname = 'idem'
                  WHERE f.proacl IS NULL
                    OR EXISTS (SELECT 1 FROM aclexplode(f.proacl) WHERE grantee = 0)
                  UNION ALL
                 SELECT c.oid::regclass::text FROM pg_class c
                  WHERE c.relnamespace = 'idem'::regnamespace
                    AND EXISTS (SELECT 1 FROM aclexplode(c.relacl) WHERE grantee = 0)
                  UNION ALL
                 SELECT n.oid::regnamespace::text FROM pg_namespace n
                  WHERE n.nspname = 'idem'
                    AND EXISTS (SELECT 1 FROM aclexplode(n.nspacl) WHERE grantee = 0)"
            )
            .await?,
        format!("idem.{FOR_CONSTRAINTS}(bigint)")
    );

    let role = db.role("ungranted").await?;
    let tried = db.connect_as(&role).await?;
    let functions = functions(&session).await?;
    ensure!(functions.len() > 40, "functions are missing");
    for function in &functions {
        let refusal = tried.refused(&function.call).await?;
        assert_eq!(
            refusal.sqlstate, "42501",
            "{}: {refusal:?}",
            function.signature
        );
    }
    assert_no_table_access(&session, &tried, &role, &[]).await
}

/// ALTER DEFAULT PRIVILEGES of the role that installs the extension gives no privilege on an object
/// of the extension.
#[tokio::test]
async fn i9_default_privileges_do_not_apply() -> Result<()> {
    let db = Database::empty("default_privileges").await?;
    let role = db.role("other").await?;
    let session = db.connect().await?;
    for objects in ["TABLES", "SEQUENCES", "FUNCTIONS", "TYPES", "SCHEMAS"] {
        session
            .run(&format!(
                "ALTER DEFAULT PRIVILEGES GRANT ALL ON {objects} TO {role}"
            ))
            .await?;
    }
    session.run("CREATE EXTENSION idem").await?;
    let granted = format!(
        "SELECT pg_describe_object(s.classid, s.objid, 0)
           FROM pg_shdepend s
          WHERE s.refobjid = '{role}'::regrole AND s.deptype = 'a'
            AND s.classid <> 'pg_default_acl'::regclass
          ORDER BY 1"
    );
    assert_eq!(session.text(&granted).await?, "");
    session.run("CREATE TABLE of_default (id text)").await?;
    assert_eq!(session.text(&granted).await?, "table of_default");
    session
        .run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await
}

/// I9: a role of each kind can execute the functions of its kind and read the views of its kind,
/// and no other functions and views.
#[tokio::test]
async fn i9_each_kind_can_execute_only_its_functions() -> Result<()> {
    let db = Database::with_idem("kinds").await?;
    let session = db.connect().await?;
    let functions = functions(&session).await?;
    let known: BTreeSet<_> = functions
        .iter()
        .filter_map(|f| api_name(&f.signature))
        .collect();
    let granted: BTreeSet<_> = KINDS
        .iter()
        .flat_map(|(_, functions)| *functions)
        .copied()
        .collect();
    assert_eq!(known, granted, "every function belongs to a kind");

    for &(kind, granted) in KINDS {
        let role = db.role(kind).await?;
        session
            .run(&format!("SELECT idem_grant('{role}', '{kind}')"))
            .await?;
        let tried = db.connect_as(&role).await?;
        for function in &functions {
            // A role that can read a view or execute the procedure `idem_maintain` can also execute
            // the internal functions that they use. These functions give no further access.
            let behind_views = [
                "waiting",
                "relay_states",
                "counters",
                "filter_states",
                "ran",
                "slice_table",
                "slice_tables",
            ];
            let internal = function
                .signature
                .strip_prefix("idem.")
                .and_then(|rest| rest.split('(').next());
            let may = match internal {
                Some(name) => {
                    name == format!("granted_{kind}")
                        || (["monitor", "admin"].contains(&kind) && behind_views.contains(&name))
                        || (["operator", "monitor", "admin"].contains(&kind)
                            && name == "claim_waits")
                        || (kind == "admin" && FOR_MAINTENANCE.contains(&name))
                        || name == FOR_CONSTRAINTS
                }
                None => api_name(&function.signature).is_some_and(|name| granted.contains(&name)),
            };
            let allowed = session
                .query_one(
                    "SELECT has_function_privilege($1::text::name, $2::text, 'EXECUTE')",
                    &[&role, &identity(function)],
                )
                .await?
                .get::<_, bool>(0);
            assert_eq!(allowed, may, "{kind}: {}", function.signature);
            if !may {
                let refusal = tried.refused(&function.call).await?;
                assert_eq!(
                    refusal.sqlstate, "42501",
                    "{kind}: {}: {refusal:?}",
                    function.signature
                );
            }
        }
        for view in views(kind) {
            tried.run(&format!("SELECT * FROM idem.{view}")).await?;
        }
        assert_no_table_access(&session, &tried, &role, views(kind))
            .await
            .with_context(|| format!("a role of kind {kind} only"))?;
    }
    Ok(())
}

/// I9: the kind consumer suffices to claim, to record effects and to journal external calls.
#[tokio::test]
async fn i9_consumer_has_the_privileges_that_it_needs() -> Result<()> {
    let db = Database::with_idem("consumer").await?;
    let session = db.connect().await?;
    let role = db.role("consumer").await?;
    session
        .run(&format!("SELECT idem_grant('{role}', 'consumer')"))
        .await?;
    let consumer = db.connect_as(&role).await?;
    assert_eq!(
        consumer
            .text(
                r#"BEGIN;
                   SELECT idem_try_claim('m1', 'orders'),
                          idem_try_claim_batch(ARRAY['m2', 'm1'], 'orders');
                   SELECT outcome FROM idem_claim('m3', 'a destination of its own', wait => false);
                   SELECT cardinality(idem_record_effects('m1', 'orders',
                       '[{"topic": "t", "payload": 1, "headers": {"a": "b"}}]'));
                   SELECT idem_try_record('m4', 'orders', '[{"topic": "t", "payload": 2}]');
                   SELECT idem_send('t', '3'::jsonb) IS NOT NULL;
                   SELECT state FROM idem_begin_call('m1', 'orders', 'charge', '{"amount": 5}');
                   SELECT idem_finish_call('m1', 'orders', 'charge', '7');
                   SELECT state FROM idem_begin_call('m1', 'orders', 'mail');
                   SELECT idem_fail_call('m1', 'orders', 'mail', 'no such mailbox', false);
                   COMMIT;
                   SELECT step, state, response, error FROM idem_calls('m1', 'orders');
                   SELECT idem_is_claimed('m1', 'orders'), idem_try_claim('m1', 'orders'),
                          idem_replay_effects('m4', 'orders');
                   SELECT topic, convert_from(payload, 'UTF8'), headers
                     FROM idem_effects('m1', 'orders')"#
            )
            .await?,
        "t|{t,f}\nclaimed\n1\nt\nt\nnew\n\nnew\n\n\
         charge|done|7|NULL\nmail|failed|NULL|no such mailbox\nt|f|1\nt|1|{\"a\": \"b\"}"
    );
    Ok(())
}

/// I9: the kinds receiver, consumer and operator suffice for the durable inbox, leases and dead
/// letters.
#[tokio::test]
async fn i9_inbox_roles_have_the_privileges_that_they_need() -> Result<()> {
    let db = Database::with_idem("outside").await?;
    let session = db.connect().await?;
    let mut roles = Vec::new();
    for kind in ["receiver", "consumer", "operator"] {
        let role = db.role(kind).await?;
        session
            .run(&format!("SELECT idem_grant('{role}', '{kind}')"))
            .await?;
        roles.push(db.connect_as(&role).await?);
    }
    let [receiver, consumer, operator] = roles.as_slice() else {
        anyhow::bail!("there are not three roles")
    };
    assert_eq!(
        receiver
            .text(
                r#"SELECT idem_receive('m1', 'orders', '{"n": 1}'::jsonb, key => 'k'),
                          idem_receive_bytes('m2', 'orders', '\x00', headers => '{"h": 1}'),
                          idem_receive('m1', 'orders', '{"n": 1}'::jsonb);
                   SELECT idem_is_claimed('m1', 'orders')"#
            )
            .await?,
        "t|t|f\nf"
    );
    let held = consumer
        .text(
            "SELECT id, token, attempt, key, convert_from(payload, 'UTF8')
               FROM idem_next('orders', 1)",
        )
        .await?;
    let token = held.split('|').nth(1).context("the row has no token")?;
    assert_eq!(held, format!("m1|{token}|1|k|{{\"n\": 1}}"));
    assert_eq!(
        consumer
            .text(&format!(
                r#"SELECT idem_extend('m1', 'orders', {token}, '1 minute');
                   SELECT cardinality(idem_complete('m1', 'orders', {token},
                       '{{"topic": "t", "payload": 1}}'));
                   SELECT idem_next_wait('orders', 0) IS NULL;
                   SELECT idem_release(id, 'orders', token, 'poison', final => true)
                     FROM idem_next('orders', 1);
                   SELECT outcome, attempt FROM idem_acquire('m3', 'orders')"#
            ))
            .await?,
        "\n1\nf\nNULL\nacquired|1"
    );
    let token = consumer
        .text("SELECT token FROM idem_acquire('m4', 'orders')")
        .await?;
    consumer
        .run(&format!(
            "SELECT idem_bury('m4', 'orders', {token}, 'payload', 'declined')"
        ))
        .await?;
    assert_eq!(
        consumer
            .text("SELECT idem_reject('m5', 'orders', 'payload', 'unknown')")
            .await?,
        "t"
    );
    assert_eq!(
        operator
            .text(
                "SELECT id, attempt, last_error FROM idem.dead_letters ORDER BY id;
                 SELECT id FROM idem.leases; SELECT destination FROM idem.waiting_messages;
                 SELECT idem_requeue('m2', 'orders'), idem_requeue('m2', 'orders'),
                        idem_discard('m4', 'orders'), idem_discard_all('orders', 'unk%');
                 SELECT idem_is_claimed('m4', 'orders'), idem_requeue_all('orders')"
            )
            .await?,
        "m2|1|poison\nm4|1|declined\nm5|1|unknown\nm3\nt|f|t|1\nt|0"
    );
    assert_eq!(
        consumer
            .text("SELECT id, attempt, headers FROM idem_next('orders', 10)")
            .await?,
        "m2|1|{\"h\": 1}"
    );
    Ok(())
}

/// I9: the kinds relay, monitor and admin suffice to publish, to observe and to administer. The
/// views of a monitor show no payload.
#[tokio::test]
async fn i9_relay_monitor_and_admin_have_needed_privileges() -> Result<()> {
    let db = Database::with_idem("others").await?;
    let session = db.connect().await?;
    let (relay, monitor, admin) = (
        db.role("relay").await?,
        db.role("monitor").await?,
        db.role("admin").await?,
    );
    session
        .run(&format!("SELECT idem_grant('{admin}', 'admin')"))
        .await?;
    session
        .run(
            r#"SELECT idem_try_record('m1', 'orders',
                   '[{"topic": "t", "payload": "secret"}, {"topic": "t", "payload": 2}]')"#,
        )
        .await?;
    let as_admin = db.connect_as(&admin).await?;
    as_admin
        .run(&format!(
            "SELECT idem_grant('{relay}', 'relay'), idem_grant('{monitor}', 'monitor')"
        ))
        .await?;
    as_admin
        .run(
            "SELECT idem_configure('orders', '1 hour'), idem_set_retention('short', '2 hours'),
                    idem_configure_retries('orders', 3);
             SELECT idem_create_relay('second', 2); SELECT idem_drop_relay('second')",
        )
        .await?;
    as_admin.run("CALL idem_maintain()").await?;

    let as_relay = db.connect_as(&relay).await?;
    let rows = as_relay
        .query(
            "SELECT token, message_id FROM idem_relay_next('default')",
            &[],
        )
        .await?;
    assert_eq!(rows.len(), 2);
    let (token, message_id): (i64, uuid::Uuid) = (rows[0].get(0), rows[0].get(1));
    as_relay
        .execute(
            "SELECT idem_relay_park('default', 0, $1, $2, 'refused')",
            &[&token, &message_id],
        )
        .await?;
    as_relay
        .execute("SELECT idem_relay_ack('default', 0, $1)", &[&token])
        .await?;
    for reader in [&as_relay, &db.connect_as(&monitor).await?] {
        assert_eq!(
            reader
                .text("SELECT relay, partition, message_id, topic, error FROM idem.parked")
                .await?,
            format!("default|0|{message_id}|t|refused")
        );
    }
    as_relay.run("SELECT idem_relay_wait(0)").await?;
    session
        .run("SELECT idem_send('billing', '1'::jsonb), idem_send('elsewhere', '2'::jsonb)")
        .await?;
    assert_eq!(
        as_relay
            .text(
                "SELECT idem_hand_over('default', ARRAY['billing']),
                        idem_hand_over('default', ARRAY['billing'])"
            )
            .await?,
        "2|0"
    );
    assert_eq!(
        session
            .text("SELECT destination, waiting FROM idem.waiting_messages")
            .await?,
        "billing|1"
    );
    assert_eq!(
        as_admin
            .text(&format!(
                "SELECT idem_relay_unpark('default', '{message_id}'), idem_repair_relays(),
                        idem_forget('m1', 'orders')"
            ))
            .await?,
        "t|0|t"
    );

    let as_monitor = db.connect_as(&monitor).await?;
    assert_eq!(
        as_monitor
            .text("SELECT idem_is_claimed('m1', 'orders'), count(*) > 4 FROM idem_health()")
            .await?,
        "f|t"
    );
    session.run("SELECT idem_try_claim('m2', 'orders')").await?;
    assert_eq!(
        as_monitor
            .text(
                "SELECT count(*) FROM idem.inbox; SELECT count(*) FROM idem.outbox;
                 SELECT count(*) FROM idem.relays;
                 SELECT count(*) FROM idem.rings; SELECT count(*) > 0 FROM idem.stats"
            )
            .await?,
        "1\n1\n1\n28\nt"
    );
    assert_eq!(
        session
            .text(
                "SELECT c.relname, a.attname FROM pg_class c
                   JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
                    WHERE c.relnamespace = 'idem'::regnamespace
                      AND c.relname IN ('inbox', 'outbox', 'rings', 'relays', 'stats', 'leases',
                        'waiting_messages', 'parked')
                      AND a.attname IN ('payload', 'headers', 'effect')"
            )
            .await?,
        "",
        "the views of a monitor show no payload"
    );
    Ok(())
}

/// I9: the name of a role is quoted in the GRANT statements, which run with the rights of the
/// owner.
#[tokio::test]
async fn i9_role_name_is_not_executed_as_sql() -> Result<()> {
    let db = Database::with_idem("names").await?;
    let session = db.connect().await?;
    let name = format!("{}_x; DROP TABLE idem.ring CASCADE; --\" '", db.name());
    let quoted = format!("\"{}\"", name.replace('"', "\"\""));
    session.run(&format!("CREATE ROLE {quoted}")).await?;
    for (kind, _) in KINDS {
        session
            .execute("SELECT idem_grant($1, $2)", &[&name, &kind])
            .await?;
    }
    let granted = session
        .query_one(
            "SELECT has_function_privilege($1::text::name, 'idem_try_claim(text, text)',
                                          'EXECUTE')",
            &[&name],
        )
        .await?;
    assert!(granted.get::<_, bool>(0));
    assert_eq!(session.text("SELECT count(*) FROM idem.ring").await?, "4");
    Ok(())
}

/// I10: `idem_grant` takes the name of a role literally, so it grants nothing to another role whose
/// name differs in case. The error says how the name is written.
#[tokio::test]
async fn i10_role_name_is_taken_literally() -> Result<()> {
    let db = Database::with_idem("literal").await?;
    let session = db.connect().await?;
    let name = format!("App-{}", db.name());
    session.run(&format!("CREATE ROLE \"{name}\"")).await?;
    session
        .run(&format!("SELECT idem_grant('{name}', 'consumer')"))
        .await?;
    let kinds = format!("SELECT * FROM idem.kinds_of_role('\"{name}\"')");
    assert_eq!(session.text(&kinds).await?, "consumer");
    for wrong in [name.to_lowercase(), format!("\"{name}\"")] {
        for function in ["idem_grant", "idem_revoke"] {
            let refusal = session
                .refused(&format!("SELECT {function}('{wrong}', 'consumer')"))
                .await?;
            assert_eq!(refusal.sqlstate, "42704", "{refusal:?}");
            assert!(
                refusal.hint.contains("in the same case and without quotes"),
                "{refusal:?}"
            );
        }
    }
    session
        .run(&format!("SELECT idem_revoke('{name}', 'consumer')"))
        .await?;
    assert_eq!(session.text(&kinds).await?, "");
    Ok(())
}

/// I9: `idem_revoke` of one of two kinds of a role keeps exactly the privileges of the other kind,
/// also where the kinds overlap.
#[tokio::test]
async fn i9_revoke_of_one_of_two_kinds_keeps_the_other() -> Result<()> {
    let db = Database::with_idem("revoke").await?;
    let session = db.connect().await?;
    for (revoked, _) in KINDS {
        for (kept, _) in KINDS.iter().filter(|(kept, _)| kept != revoked) {
            let (both, only) = (db.role("both").await?, db.role("only").await?);
            session
                .run(&format!(
                    "SELECT idem_grant('{both}', '{revoked}'), idem_grant('{both}', '{kept}'),
                            idem_grant('{only}', '{kept}')"
                ))
                .await?;
            session
                .run(&format!("SELECT idem_revoke('{both}', '{revoked}')"))
                .await?;
            let expected = privileges(&session, &only).await?;
            ensure!(!expected.is_empty(), "{kept} has no privileges");
            assert_eq!(
                privileges(&session, &both).await?,
                expected,
                "{kept} after {revoked} is revoked"
            );
            session
                .run(&format!("SELECT idem_revoke('{both}', '{kept}')"))
                .await?;
            assert_eq!(
                privileges(&session, &both).await?,
                "",
                "{revoked} and {kept} are revoked"
            );
            // PostgreSQL drops a role only when no privilege refers to it.
            session.run(&format!("DROP ROLE {both}")).await?;
            session
                .run(&format!(
                    "SELECT idem_revoke('{only}', '{kept}'); DROP ROLE {only}"
                ))
                .await?;
        }
    }
    Ok(())
}

/// I9: `idem_revoke` of a kind that the role does not have changes nothing, also where kinds
/// overlap.
#[tokio::test]
async fn i9_revoke_of_a_kind_not_held_changes_nothing() -> Result<()> {
    let db = Database::with_idem("not_held").await?;
    let session = db.connect().await?;
    for (held, _) in KINDS {
        let role = db.role(held).await?;
        session
            .run(&format!("SELECT idem_grant('{role}', '{held}')"))
            .await?;
        let before = privileges(&session, &role).await?;
        for (other, _) in KINDS.iter().filter(|(other, _)| other != held) {
            session
                .run(&format!("SELECT idem_revoke('{role}', '{other}')"))
                .await?;
            assert_eq!(
                privileges(&session, &role).await?,
                before,
                "{held} after {other} is revoked"
            );
        }
    }
    Ok(())
}

/// I9: two concurrent transactions that each revoke one of the two kinds of a role leave the role
/// no privilege.
#[tokio::test]
async fn i9_concurrent_revokes_leave_no_privilege() -> Result<()> {
    let db = Database::with_idem("two_revokes").await?;
    let (session, first, second) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    let role = db.role("both").await?;
    session
        .run(&format!(
            "SELECT idem_grant('{role}', 'consumer'), idem_grant('{role}', 'receiver')"
        ))
        .await?;
    first
        .run(&format!("BEGIN; SELECT idem_revoke('{role}', 'consumer')"))
        .await?;
    let statement = format!("SELECT idem_revoke('{role}', 'receiver')");
    let pid = second.pid().await?;
    let waiting = tokio::spawn(async move { second.run(&statement).await });
    db.until_blocked(pid).await?;
    first.run("COMMIT").await?;
    waiting.await??;
    assert_eq!(privileges(&session, &role).await?, "");
    Ok(())
}

/// I9: a role of kind admin can revoke a kind although it owns no object, and an open session loses
/// the privilege at once.
#[tokio::test]
async fn i9_admin_revokes_and_an_open_session_loses_access() -> Result<()> {
    let db = Database::with_idem("revoked").await?;
    let session = db.connect().await?;
    let (admin, role) = (db.role("admin").await?, db.role("consumer").await?);
    session
        .run(&format!(
            "SELECT idem_grant('{admin}', 'admin'), idem_grant('{role}', 'consumer')"
        ))
        .await?;
    let consumer = db.connect_as(&role).await?;
    consumer
        .run("BEGIN; SELECT idem_try_claim('m1', 'orders'); COMMIT")
        .await?;
    db.connect_as(&admin)
        .await?
        .run(&format!("SELECT idem_revoke('{role}', 'consumer')"))
        .await?;
    let refusal = consumer
        .refused("BEGIN; SELECT idem_try_claim('m2', 'orders')")
        .await?;
    assert_eq!(refusal.sqlstate, "42501", "{refusal:?}");
    let refusal = session
        .refused(&format!("SELECT idem_revoke('{role}', 'superuser')"))
        .await?;
    assert_eq!(
        (refusal.sqlstate.as_str(), refusal.hint.as_str()),
        (
            "22023",
            "The kinds are consumer, receiver, relay, operator, monitor and admin."
        )
    );
    Ok(())
}

/// Returns the name of a function of the API, and `None` for a function in schema idem.
fn api_name(signature: &str) -> Option<&str> {
    signature.strip_prefix("public.")?.split('(').next()
}

/// Returns the signature without argument names, in the form of regprocedure, from the statement
/// with NULL arguments.
fn identity(function: &super::Function) -> String {
    function
        .call
        .replace("SELECT ", "")
        .replace("CALL ", "")
        .replace("NULL::", "")
}

/// Returns every privilege of the role on functions, relations, columns, schemas and types of the
/// database.
async fn privileges(session: &Session, role: &str) -> Result<String> {
    session
        .text(&format!(
            "WITH acl (object, acl) AS (
                 SELECT oid::regprocedure::text, proacl FROM pg_proc
                 UNION ALL SELECT oid::regclass::text, relacl FROM pg_class
                 UNION ALL SELECT attrelid::regclass || '.' || attname, attacl FROM pg_attribute
                 UNION ALL SELECT oid::regnamespace::text, nspacl FROM pg_namespace
                 UNION ALL SELECT oid::regtype::text, typacl FROM pg_type)
             SELECT object, privilege_type, is_grantable FROM acl, aclexplode(acl.acl)
              WHERE grantee = '{role}'::regrole ORDER BY 1, 2"
        ))
        .await
}

/// Fails when the role has a privilege on a table, view, sequence or schema, except SELECT on
/// `views`.
async fn assert_no_table_access(
    session: &Session,
    tried: &Session,
    role: &str,
    views: &[&str],
) -> Result<()> {
    let views: Vec<_> = views.iter().map(|view| (*view).to_owned()).collect();
    let accessible = session
        .query(
            "SELECT c.relname || ': ' || privilege
               FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE',
                   'REFERENCES', 'TRIGGER']) privilege
              WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind IN ('r', 'v')
                AND (has_table_privilege($1::text::name, c.oid, privilege)
                    OR (privilege <> 'DELETE' AND privilege NOT LIKE 'TR%'
                     AND has_any_column_privilege($1::text::name, c.oid, privilege)))
                AND NOT (privilege = 'SELECT' AND c.relname = ANY ($2))
              UNION ALL
             SELECT c.relname || ': ' || privilege
               FROM pg_class c, unnest(ARRAY['SELECT', 'USAGE', 'UPDATE']) privilege
              WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind = 'S'
                AND has_sequence_privilege($1::text::name, c.oid, privilege)
              UNION ALL
             SELECT 'CREATE in ' || nspname FROM pg_namespace
              WHERE nspname IN ('idem', 'public')
                AND has_schema_privilege($1::text::name, oid, 'CREATE')",
            &[&role, &views],
        )
        .await?;
    let accessible: Vec<String> = accessible.iter().map(|row| row.get(0)).collect();
    ensure!(accessible.is_empty(), "{role} has access to {accessible:?}");

    for statement in [
        "SELECT * FROM idem.inbox_standard_0",
        "SELECT * FROM idem.outbox_row",
        "SELECT * FROM idem.parked_effect",
        "INSERT INTO idem.destination (name) VALUES ('mine')",
        "UPDATE idem.ring SET retention = '1 s'",
        "DELETE FROM idem.outbox_0",
        "TRUNCATE idem.inbox_short_0",
        "SELECT nextval('idem.outbox_seq')",
        "CREATE TABLE idem.mine ()",
        "CREATE TRIGGER t AFTER INSERT ON idem.destination EXECUTE FUNCTION idem.publish()",
        "ALTER EXTENSION idem ADD SCHEMA public",
    ] {
        let refusal = tried.refused(statement).await?;
        ensure!(
            refusal.sqlstate == "42501",
            "{role}: {statement}: {refusal:?}"
        );
    }
    Ok(())
}
