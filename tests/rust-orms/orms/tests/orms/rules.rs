//! What every executor fulfils.

use std::cmp::Ordering;
use std::time::Duration;

use idem_client::inbox::{InboxMessage, next, receive_batch};
use idem_client::lease::{Lease, acquire};
use idem_client::tokio_postgres::types::{IsNull, Json, ToSql, Type};
use idem_client::{
    Claim, ClaimOptions, Executor, MessageId, OpenTransaction, claim, effects, try_claim_batch,
};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::macros::datetime;
use uuid::Uuid;

use crate::fixtures::{Fixture, facts, id, payments};

const MINUTE: Duration = Duration::from_secs(60);

pub type Parameter<'v> = (&'v (dyn ToSql + Sync), Type);

async fn echo<E: Executor>(executor: &E, parameters: &[Parameter<'_>]) -> idem_client::Row {
    let columns: Vec<_> = (1..=parameters.len()).map(|n| format!("${n}")).collect();
    let sql = format!("SELECT {}", columns.join(", "));
    executor.fetch_one(&sql, parameters).await.unwrap()
}

/// Goal: each type of a parameter passes unchanged, and NULL of each type is NULL.
pub async fn values_pass_unchanged(executor: &impl Executor) {
    let text = "a\"b\\c{,}$1 é".to_owned();
    let uuid = Uuid::new_v4();
    let bytes = vec![0_u8, 255, 39, 92];
    let json = json!({"n": [1, null, "\"\\'"], "big": 9_007_199_254_740_993_i64});
    let at = datetime!(2026-02-28 23:59:59.123456 UTC);
    let texts = vec![
        Some(text.clone()),
        None,
        Some("NULL".into()),
        Some("".into()),
    ];
    let uuids = vec![Some(uuid), None];
    let byteas = vec![Some(bytes.clone()), None];
    let jsons = vec![Some(Json(json.clone())), None];
    let times = vec![Some(at), None];
    let parameters: [Parameter; 14] = [
        (&text, Type::TEXT),
        (&uuid, Type::UUID),
        (&true, Type::BOOL),
        (&i32::MIN, Type::INT4),
        (&i64::MAX, Type::INT8),
        (&0.1_f64, Type::FLOAT8),
        (&bytes, Type::BYTEA),
        (&json, Type::JSONB),
        (&at, Type::TIMESTAMPTZ),
        (&texts, Type::TEXT_ARRAY),
        (&uuids, Type::UUID_ARRAY),
        (&byteas, Type::BYTEA_ARRAY),
        (&jsons, Type::JSONB_ARRAY),
        (&times, Type::TIMESTAMPTZ_ARRAY),
    ];
    let row = echo(executor, &parameters).await;
    assert_eq!(row.try_get::<_, String>(0).unwrap(), text);
    assert_eq!(row.try_get::<_, Uuid>(1).unwrap(), uuid);
    assert!(row.try_get::<_, bool>(2).unwrap());
    assert_eq!(row.try_get::<_, i32>(3).unwrap(), i32::MIN);
    assert_eq!(row.try_get::<_, i64>(4).unwrap(), i64::MAX);
    assert_eq!(row.try_get::<_, f64>(5).unwrap(), 0.1);
    assert_eq!(row.try_get::<_, Vec<u8>>(6).unwrap(), bytes);
    assert_eq!(row.try_get::<_, Value>(7).unwrap(), json);
    assert_eq!(row.try_get::<_, OffsetDateTime>(8).unwrap(), at);
    assert_eq!(row.try_get::<_, Vec<Option<String>>>(9).unwrap(), texts);
    assert_eq!(row.try_get::<_, Vec<Option<Uuid>>>(10).unwrap(), uuids);
    assert_eq!(row.try_get::<_, Vec<Option<Vec<u8>>>>(11).unwrap(), byteas);
    let found: Vec<Option<Json<Value>>> = row.try_get(12).unwrap();
    assert_eq!(found[0].as_ref().unwrap().0, json);
    assert!(found[1].is_none());
    let found: Vec<Option<OffsetDateTime>> = row.try_get(13).unwrap();
    assert_eq!(found, times);

    for (number, (_, type_)) in parameters.into_iter().enumerate() {
        let row = echo(executor, &[(&None::<String>, Type::TEXT), (&Null, type_)]).await;
        assert!(
            row.try_get::<_, Option<NoValue>>(1).unwrap().is_none(),
            "{number}"
        );
    }
    for float in [
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        -0.0,
        f64::MIN_POSITIVE,
    ] {
        let row = echo(executor, &[(&float, Type::FLOAT8), (&i64::MIN, Type::INT8)]).await;
        let found: f64 = row.try_get(0).unwrap();
        assert_eq!(found.total_cmp(&float), Ordering::Equal, "{float}: {found}");
        assert_eq!(row.try_get::<_, i64>(1).unwrap(), i64::MIN);
    }
    for at in [
        datetime!(0001-01-01 00:00 UTC),
        datetime!(9999-12-31 23:59:59.999999 UTC),
    ] {
        let row = echo(executor, &[(&at, Type::TIMESTAMPTZ)]).await;
        assert_eq!(row.try_get::<_, OffsetDateTime>(0).unwrap(), at);
    }
    let row = executor.fetch_one("SELECT NULL::int4 AS n", &[]).await;
    assert_eq!(row.unwrap().try_get::<_, Option<i32>>("n").unwrap(), None);
}

/// NULL of any type.
#[derive(Debug)]
struct Null;

impl ToSql for Null {
    fn to_sql(
        &self,
        _: &Type,
        _: &mut bytes::BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        Ok(IsNull::Yes)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    idem_client::tokio_postgres::types::to_sql_checked!();
}

/// Reads a NULL of any type, and fails for every value.
struct NoValue;

impl<'a> idem_client::tokio_postgres::types::FromSql<'a> for NoValue {
    fn from_sql(_: &Type, _: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Err("a value".into())
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// Goal: a later claim of a message that was claimed with the fingerprint `1, 2` has the outcome of
/// `tokio-postgres`. The effects are those that were recorded. Invariant: I3.
pub async fn later_claims_have_their_outcomes(
    tx: &impl OpenTransaction,
    fixture: &Fixture,
    id: &MessageId,
) {
    let to = payments();
    let same = ClaimOptions::default().fingerprint([1, 2]);
    let again = claim(tx, id, &to, &same).await.unwrap();
    let Claim::Duplicate {
        handled_at: Some(at),
    } = again
    else {
        panic!("{again:?}");
    };
    assert!((OffsetDateTime::now_utc() - at).unsigned_abs() < MINUTE);
    let differs = ClaimOptions::default().fingerprint([3]);
    let mismatch = claim(tx, id, &to, &differs).await.unwrap();
    assert!(matches!(mismatch, Claim::Mismatch { .. }), "{mismatch:?}");
    let found = effects(tx, id, &to).await.unwrap();
    assert_eq!(found, fixture.recorded(id).await);
    let json: Value = serde_json::from_slice(&found[0].payload).unwrap();
    assert_eq!(json, json!({"quotes": "\"\\", "none": null}));
    assert_eq!(found[0].headers, Some(json!({"h": "v"})));
    assert_eq!(found[1].payload[..], [0, 255, 10]);
    assert_eq!(found.len(), facts().len());
}

/// Goal: ids that are texts and uuids use statements of their own on one connection.
pub async fn batches_of_texts_and_uuids_are_claimed(tx: &impl OpenTransaction) {
    let to = payments();
    let texts = [id("a"), id("b"), id("a")];
    let uuids = [Uuid::new_v4(), Uuid::new_v4()].map(MessageId::from);
    let claims = try_claim_batch(tx, &texts, &to).await.unwrap();
    let are_new: Vec<_> = claims.iter().map(Claim::is_new).collect();
    assert_eq!(are_new, [true, true, false]);
    let claims = try_claim_batch(tx, &uuids, &to).await.unwrap();
    assert!(claims.iter().all(Claim::is_new));
    for id in [id("c"), Uuid::new_v4().into(), id("d")] {
        let claim = idem_client::try_claim(tx, &id, &to).await.unwrap();
        assert!(claim.is_new(), "{id}");
    }
}

/// Goal: leases, the inbox and the checks of the server work on a connection. The batch of the
/// inbox contains arrays with NULL.
pub async fn connection_leases_and_receives(connection: &impl Executor) {
    let to = payments();
    let lease = acquire(connection, &id("leased"), &to, MINUTE)
        .await
        .unwrap();
    let Lease::Acquired(held) = lease else {
        panic!("{lease:?}");
    };
    let ids = held.complete(connection, &facts()).await.unwrap();
    assert_eq!(ids.len(), 2);
    let full = InboxMessage::bytes(vec![1, 0, 255]).key("k").header("n", 1);
    let bare = InboxMessage::json(&json!({"bare": true})).unwrap();
    let batch = [(id("full"), full), (id("bare"), bare)];
    let received = receive_batch(connection, &to, &batch).await.unwrap();
    assert_eq!(received, [true, true]);
    let leased = next(connection, &to, 10, 1 << 20, MINUTE).await.unwrap();
    assert_eq!(leased[0].payload[..], [1, 0, 255]);
    assert_eq!(
        (leased[0].key.as_deref(), &leased[0].headers["n"]),
        (Some("k"), &json!(1))
    );
    assert_eq!(leased[1].key, None);
}
