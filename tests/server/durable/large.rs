//! Tests of large messages: `idem.max_payload` limits what is stored, and a message that the server
//! cannot return does not stop the others.

use anyhow::Result;
use idem_cluster::{Cluster, Install};
use idem_testkit::{Database, Session};

use super::{ids, next, receive};

/// A payload in SQL of this many bytes.
fn bytes(count: usize) -> String {
    format!("convert_to(repeat('x', {count}), 'UTF8')")
}

/// A payload in SQL, as `jsonb` with a text of this many bytes.
fn json(count: usize) -> String {
    format!("to_jsonb(repeat('x', {}))", count - 2)
}

/// I4: each function that stores a payload fails with 54000 above `idem.max_payload`, and stores a
/// payload of exactly this size.
#[tokio::test]
async fn i4_payload_above_the_limit_is_not_stored() -> Result<()> {
    const LIMIT: usize = 64 * 1024;
    let server = Cluster::builder(&Install::from_env()?)
        .name("max_payload")
        .setting("idem.max_payload", "64kB")
        .start()?;
    Session::in_database_with_idem(&server, "app").await?;
    let session = Session::superuser(&server, "app").await?;
    let effect = |count: usize| {
        format!(
            "jsonb_build_array(jsonb_build_object('topic', 't', 'payload', {}))",
            json(count)
        )
    };
    let encoded = |count: usize| {
        format!(
            "jsonb_build_array(jsonb_build_object('topic', 't', 'payload_base64', \
             translate(encode({}, 'base64'), E'\\n', '')))",
            bytes(count)
        )
    };
    let leased = "(SELECT token FROM idem_acquire('l', 'd'))";
    let cases: &[&dyn Fn(usize) -> String] = &[
        &|n| format!("SELECT idem_receive_bytes('rb', 'd', {})", bytes(n)),
        &|n| format!("SELECT idem_receive('r', 'd', {})", json(n)),
        &|n| format!("SELECT idem_send_bytes('t', {})", bytes(n)),
        &|n| format!("SELECT idem_send('t', {})", json(n)),
        &|n| format!("SELECT idem_try_record('tr', 'd', {})", effect(n)),
        &|n| format!("SELECT idem_try_record('te', 'd', {})", encoded(n)),
        &|n| {
            format!(
                "SELECT idem_try_claim('re', 'd'), idem_record_effects('re', 'd', {})",
                effect(n)
            )
        },
        &|n| format!("SELECT idem_complete('l', 'd', {leased}, {})", effect(n)),
        &|n| format!("SELECT idem_reject('rj', 'd', {}, 'boom')", bytes(n)),
        &|n| {
            format!(
                "SELECT idem_bury('b', 'd', (SELECT token FROM idem_acquire('b', 'd')), {},
                                  'boom')",
                bytes(n)
            )
        },
        &|n| {
            format!(
                "SELECT idem_begin_call('c', 'd', 's');
                 SELECT idem_finish_call('c', 'd', 's', {}::json)",
                json(n)
            )
        },
    ];
    for case in cases {
        let refusal = session.refused(&case(LIMIT + 1)).await?;
        assert_eq!(
            refusal.sqlstate,
            "54000",
            "{}: {refusal:?}",
            case(LIMIT + 1)
        );
        assert!(refusal.message.ends_with("has 65537 bytes"), "{refusal:?}");
        assert!(refusal.hint.contains("idem.max_payload"), "{refusal:?}");
        session.run(&case(LIMIT)).await?;
    }
    assert_eq!(
        session
            .text(
                "SELECT idem.largest_payload() / 1024 = max_val::bigint,
                        position(idem.largest_payload()::text
                                 IN pg_get_viewdef('idem.dead_letters'::regclass)) > 0
                   FROM pg_settings WHERE name = 'idem.max_payload'"
            )
            .await?,
        "t|t",
        "the setting and the view use the same limit"
    );
    for set in ["SET", "SET LOCAL"] {
        let refusal = session
            .refused(&format!("{set} idem.max_payload = '1MB'"))
            .await?;
        assert_eq!(refusal.sqlstate, "55P02", "a role cannot change the limit");
    }
    Ok(())
}

/// The size of a payload that the server stores, but cannot return as text: its text form would
/// exceed 1 GB.
const TOO_LARGE: usize = 540_000_000;

/// I4: a message that the server cannot return, for example of a restored table, becomes a dead
/// letter with the reason. The messages behind it are returned, and the view shows it.
#[tokio::test]
async fn i4_message_too_large_to_return_stops_no_other() -> Result<()> {
    let db = Database::with_idem("too_large").await?;
    let session = db.connect().await?;
    for id in ["large", "small"] {
        assert!(receive(&session, id, ", key => 'k'").await?);
    }
    session
        .run(&format!(
            "UPDATE idem.payload_0 SET payload = {}
              WHERE seq = (SELECT seq FROM idem.pending WHERE id = 'large')",
            bytes(TOO_LARGE)
        ))
        .await?;
    let row = "SELECT id, payload FROM idem_next('mail', 10)";
    assert_eq!(session.text(row).await?, r"small|\x22736d616c6c22");
    assert_eq!(
        session
            .text("SELECT id, payload, attempt, last_error FROM idem.dead_letters")
            .await?,
        format!(
            "large|NULL|0|the payload has {TOO_LARGE} bytes, which is too large to be returned"
        )
    );
    assert_eq!(
        session
            .text("SELECT octet_length(payload) FROM idem.dead_letter")
            .await?,
        TOO_LARGE.to_string(),
        "the content is kept"
    );
    assert_eq!(
        session.text("SELECT idem_discard('large', 'mail')").await?,
        "t"
    );
    assert_eq!(ids(&next(&session, 1).await?), [""; 0]);
    Ok(())
}

/// I4: an effect that the server cannot return is parked with the reason, whether it is new or was
/// delayed. The effects behind it are returned.
#[tokio::test]
async fn i4_effect_too_large_to_return_is_parked_alone() -> Result<()> {
    let db = Database::with_idem("too_large_effect").await?;
    let session = db.connect().await?;
    session
        .run("SELECT idem_send('t', '1'::jsonb), idem_send('t', '2'::jsonb)")
        .await?;
    session
        .run(&format!(
            "UPDATE idem.outbox_0 SET payload = {}
              WHERE seq = (SELECT min(seq) FROM idem.outbox_0)",
            bytes(TOO_LARGE)
        ))
        .await?;
    for next in [r"\x32", ""] {
        let row = "SELECT payload FROM idem_relay_next('default', max_bytes => 1073741824)";
        assert_eq!(session.text(row).await?, next);
        assert_eq!(
            session.text("SELECT error FROM idem.parked").await?,
            format!("the payload has {TOO_LARGE} bytes, which is too large to be returned")
        );
        let ack =
            "SELECT idem_relay_ack('default', 0, max(pos)) FROM idem.progress WHERE relay = 1";
        if !next.is_empty() {
            session.run(ack).await?;
        }
        session
            .run("SELECT idem_relay_unpark('default', message_id) FROM idem.parked")
            .await?;
    }
    Ok(())
}
