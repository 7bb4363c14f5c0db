//! Tests of set-up and administration on a real server. The last test checks that the client has a
//! function or a type for every SQL function.

use std::time::{Duration, Instant};

use idem_client::{
    Claim, Destination, ErrorKind, MessageId, RecordedEffect,
    admin::{
        Ring, RoleKind, Status, configure, forget, grant, health, maintain, remove_destination,
        revoke, set_retention,
    },
    begin_and_claim, effects, is_claimed,
};
use idem_testkit::Database;
use tokio_postgres::{Client, NoTls, error::SqlState};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Starts a server for one test. The tests of this program do not share a server, because all users
/// of a server share its rings, roles and health.
async fn start(name: &str) -> (Database, Client) {
    let database = Database::create_alone(name);
    let client = connect(&database.url()).await;
    (database, client)
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn claim_and_commit(
    client: &mut Client,
    id: &MessageId,
    to: &Destination,
) -> Result<bool, idem_client::Error> {
    match begin_and_claim(client, id, to).await? {
        Claim::New(claimed) => claimed.commit().await.map(|()| true),
        other => {
            assert!(other.is_duplicate());
            Ok(false)
        }
    }
}

#[tokio::test]
async fn forgotten_message_can_be_claimed_again() {
    let (_database, mut client) = start("client-forget").await;
    let (id, to) = (
        MessageId::text("m-1").unwrap(),
        Destination::new("care").unwrap(),
    );
    assert!(!forget(&client, &id, &to).await.unwrap());
    assert!(claim_and_commit(&mut client, &id, &to).await.unwrap());
    assert!(!claim_and_commit(&mut client, &id, &to).await.unwrap());
    assert!(forget(&client, &id, &to).await.unwrap());
    assert!(!is_claimed(&client, &id, &to).await.unwrap());
    assert_eq!(
        effects(&client, &id, &to).await.unwrap(),
        Vec::<RecordedEffect>::new()
    );
    assert!(claim_and_commit(&mut client, &id, &to).await.unwrap());
}

#[tokio::test]
async fn configure_selects_the_shortest_sufficient_ring() {
    let (_database, client) = start("client-configure").await;
    let to = Destination::new("care").unwrap();
    let ring = async || -> String {
        let sql = "SELECT r.name FROM idem.destination d JOIN idem.ring r ON r.id = d.ring
                    WHERE d.name = 'care'";
        client.query_one(sql, &[]).await.unwrap().get(0)
    };
    configure(&client, &to, Duration::from_secs(60))
        .await
        .unwrap();
    assert_eq!(ring().await, "short");
    configure(&client, &to, 8 * DAY).await.unwrap();
    assert_eq!(ring().await, "long");
    for wrong in [31 * DAY, Duration::ZERO] {
        let error = configure(&client, &to, wrong).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    assert_eq!(ring().await, "long");

    // Retentions have microsecond precision. No ring can retain claims for less time than its
    // destinations require.
    set_retention(&client, Ring::Long, 60 * DAY).await.unwrap();
    set_retention(&client, Ring::Short, Duration::from_micros(100_001))
        .await
        .unwrap();
    let sql = "SELECT retention = '60 days' FROM idem.ring WHERE name = 'long'
               UNION ALL
               SELECT retention = '100.001 milliseconds' FROM idem.ring WHERE name = 'short'";
    for row in client.query(sql, &[]).await.unwrap() {
        assert!(row.get::<_, bool>(0));
    }
    // No claim or message refers to the destination, so it is removed. The second removal finds no
    // destination.
    assert!(remove_destination(&client, &to).await.unwrap());
    assert!(!remove_destination(&client, &to).await.unwrap());
    configure(&client, &to, 31 * DAY).await.unwrap();
    let error = set_retention(&client, Ring::Long, 30 * DAY)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let error = set_retention(&client, Ring::Standard, 61 * DAY)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[tokio::test]
async fn role_can_execute_granted_functions_only() {
    let (database, client) = start("client-grant").await;
    // Use a role name that needs quotes in SQL.
    let name = "The Consumer's";
    client
        .batch_execute(r#"CREATE ROLE "The Consumer's" LOGIN"#)
        .await
        .unwrap();
    let url = format!(r"{} user='The Consumer\'s'", database.direct_url());
    let mut consumer = connect(&url).await;
    let (id, to) = (
        MessageId::text("m-1").unwrap(),
        Destination::new("care").unwrap(),
    );

    let error = claim_and_commit(&mut consumer, &id, &to).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotGranted, "{error}");
    grant(&client, name, RoleKind::Consumer).await.unwrap();
    assert!(claim_and_commit(&mut consumer, &id, &to).await.unwrap());
    let error = health(&consumer).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotGranted, "{error}");
    grant(&client, name, RoleKind::Monitor).await.unwrap();
    assert!(!health(&consumer).await.unwrap().is_empty());
    let error = maintain(&consumer).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotGranted, "{error}");
    grant(&client, name, RoleKind::Admin).await.unwrap();
    maintain(&consumer).await.unwrap();
    grant(&client, name, RoleKind::Relay).await.unwrap();

    revoke(&client, name, RoleKind::Admin).await.unwrap();
    let error = maintain(&consumer).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotGranted, "{error}");
    assert!(
        !health(&consumer).await.unwrap().is_empty(),
        "the role still has the monitor grant"
    );
    assert!(!claim_and_commit(&mut consumer, &id, &to).await.unwrap());

    for error in [
        grant(&client, "no_such_role", RoleKind::Consumer)
            .await
            .unwrap_err(),
        revoke(&client, "no_such_role", RoleKind::Consumer)
            .await
            .unwrap_err(),
    ] {
        assert_eq!(
            error.sqlstate(),
            Some(&SqlState::UNDEFINED_OBJECT),
            "{error}"
        );
    }
}

#[tokio::test]
async fn health_lists_worst_first_and_maintain_repairs_rotation() {
    let (_database, mut client) = start("client-health").await;
    // Read the health in the transaction of the update. After the commit, the worker could see the
    // update and rotate the ring first.
    let tx = client.transaction().await.unwrap();
    tx.batch_execute(
        "UPDATE idem.ring SET rotated_at = rotated_at - interval '1 day' WHERE name = 'short'",
    )
    .await
    .unwrap();
    let checks = health(&tx).await.unwrap();
    tx.commit().await.unwrap();
    assert!(
        checks.is_sorted_by(|a, b| a.status >= b.status),
        "{checks:#?}"
    );
    assert_eq!(checks[0].name, "rotation short");
    assert_eq!(checks[0].status, Status::Critical);
    assert!(checks[0].detail.contains("late"), "{checks:#?}");
    for name in ["worker", "rotation long", "outbox", "relay default/0"] {
        assert!(
            checks.iter().any(|check| check.name == name),
            "{name}: {checks:#?}"
        );
    }

    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        maintain(&client).await.unwrap();
        let checks = health(&client).await.unwrap();
        let ring = checks
            .iter()
            .find(|check| check.name == "rotation short")
            .unwrap();
        if ring.status == Status::Ok {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "the ring does not rotate: {ring:?}"
        );
    }
}

/// Maps each SQL function to the client function or type that uses it. A missing client function is
/// a compile error.
macro_rules! client_functions {
    ($($function:literal => $($path:ident)::+,)+) => {
        mod every_client_function_exists {
            $(#[expect(unused_imports)] use $($path)::+ as _;)+
        }
        const FUNCTIONS: &[(&str, &str)] = &[$(($function, stringify!($($path)::+)),)+];
    };
}

client_functions! {
    "idem_acquire" => idem_client::lease::acquire,
    "idem_allow_commit" => idem_client::pipeline::allow_commit,
    "idem_begin_call" => idem_client::journal::begin_call,
    "idem_bury" => idem_client::lease::Held, // a method of this type
    "idem_calls" => idem_client::journal::calls,
    "idem_claim" => idem_client::claim, // the client always claims in a transaction block
    "idem_claim_in_block" => idem_client::claim,
    "idem_complete" => idem_client::lease::Held, // a method of this type
    "idem_configure" => idem_client::admin::configure,
    "idem_configure_retries" => idem_client::inbox::configure_retries,
    "idem_create_relay" => idem_client::relay::create_relay,
    "idem_discard" => idem_client::deadletters::discard,
    "idem_discard_all" => idem_client::deadletters::discard_all,
    "idem_drop_relay" => idem_client::relay::drop_relay,
    "idem_effects" => idem_client::effects,
    "idem_extend" => idem_client::lease::Held, // a method of this type
    "idem_fail_call" => idem_client::journal::fail_call,
    "idem_finish_call" => idem_client::journal::finish_call,
    "idem_finish_restore" => idem_client::admin::finish_restore,
    "idem_forbid_commit" => idem_client::begin_and_claim,
    "idem_forget" => idem_client::admin::forget,
    "idem_forward" => idem_client::deadletters::forward,
    "idem_forward_all" => idem_client::deadletters::forward_all,
    "idem_grant" => idem_client::admin::grant,
    "idem_hand_over" => idem_client::relay::hand_over,
    "idem_health" => idem_client::admin::health,
    "idem_is_claimed" => idem_client::is_claimed,
    "idem_maintain" => idem_client::admin::maintain,
    "idem_new_installation" => idem_client::admin::new_installation,
    "idem_next" => idem_client::inbox::next,
    "idem_next_wait" => idem_client::inbox::next_wait,
    "idem_receive" => idem_client::inbox::receive, // the client sends every payload as bytes
    "idem_receive_bytes" => idem_client::inbox::receive,
    "idem_record_effects" => idem_client::Claimed, // a method of this type
    "idem_reject" => idem_client::deadletters::reject,
    "idem_relay_ack" => idem_client::relay::ack,
    "idem_relay_discard" => idem_client::relay::discard,
    "idem_relay_discard_all" => idem_client::relay::discard_all,
    "idem_relay_extend" => idem_client::relay::extend,
    "idem_relay_next" => idem_client::relay::next,
    "idem_relay_park" => idem_client::relay::park,
    "idem_relay_partitions" => idem_client::relay::partitions,
    "idem_relay_unpark" => idem_client::relay::unpark,
    "idem_relay_unpark_all" => idem_client::relay::unpark_all,
    "idem_relay_wait" => idem_client::relay::wait,
    "idem_release" => idem_client::lease::Held, // a method of this type
    "idem_remove_destination" => idem_client::admin::remove_destination,
    "idem_repair_relays" => idem_client::relay::repair_relays,
    "idem_replay_effects" => idem_client::admin::replay_effects,
    "idem_requeue" => idem_client::deadletters::requeue,
    "idem_requeue_all" => idem_client::deadletters::requeue_all,
    "idem_revoke" => idem_client::admin::revoke,
    "idem_rotation_blockers" => idem_client::admin::rotation_blockers,
    "idem_send" => idem_client::send,
    "idem_send_bytes" => idem_client::send,
    "idem_set_message_identity" => idem_client::admin::set_message_identity,
    "idem_set_retention" => idem_client::admin::set_retention,
    "idem_try_claim" => idem_client::try_claim,
    "idem_try_claim_batch" => idem_client::try_claim_batch,
    "idem_try_claim_uuid_batch" => idem_client::try_claim_batch,
    "idem_try_record" => idem_client::try_record,
}

#[tokio::test]
async fn client_and_reference_cover_every_sql_function() {
    let (_database, client) = start("client-catalog").await;
    let sql = "SELECT DISTINCT f.proname::text FROM pg_proc f
                 JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = f.oid
                                 AND d.deptype = 'e'
                 JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass
                                    AND e.oid = d.refobjid
                WHERE e.extname = 'idem' AND f.pronamespace = 'public'::regnamespace ORDER BY 1";
    let functions: Vec<String> = client
        .query(sql, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    let covered: Vec<&str> = FUNCTIONS.iter().map(|(function, _)| *function).collect();
    assert_eq!(
        functions, covered,
        "SQL functions of the extension and of the client differ"
    );

    let reference = include_str!("../../docs/reference.md");
    for function in covered {
        assert!(
            reference.contains(&format!("{function}(")),
            "{function} is not in docs/reference.md"
        );
    }
}
