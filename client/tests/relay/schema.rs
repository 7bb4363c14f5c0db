//! Tests of the functions of the extension in a separate schema.

use deadpool_postgres::Pool;
use idem_brokers::PgBouncer;
use idem_client::{ErrorKind, PoolConfig, relay_preflight};
use idem_cluster::{Cluster, Install};

use crate::{
    broker::Broker,
    support::Database,
    world::{Running, quick},
};

fn pool(db: &Database, schema: &str) -> Pool {
    let config = PoolConfig::parse(&db.direct_url())
        .unwrap()
        .schema(schema)
        .unwrap();
    config.max_size(3).build().unwrap()
}

async fn setting(pool: &Pool, name: &str) -> String {
    let client = pool.get().await.unwrap();
    let setting = format!("SELECT pg_catalog.current_setting('{name}')");
    client.query_one(&setting, &[]).await.unwrap().get(0)
}

/// Goal: the client finds the functions in schemas with names that need quotes in SQL and in the
/// startup packet.
#[tokio::test]
async fn functions_are_found_in_the_configured_schema() {
    for schema in [
        "api",
        "The API",
        "public -c statement_timeout=7",
        "a, b; DROP SCHEMA idem",
    ] {
        let db = Database::create();
        let quoted = format!("\"{schema}\"");
        db.server.psql(
            &db.name,
            &format!(
                "DROP EXTENSION idem; CREATE SCHEMA {quoted};
                 CREATE EXTENSION idem SCHEMA {quoted}"
            ),
        );
        let pool = pool(&db, schema);
        relay_preflight(&**pool.get().await.unwrap())
            .await
            .unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert_eq!(
            setting(&pool, "search_path").await,
            format!("{quoted}, \"$user\", public")
        );
        assert_eq!(setting(&pool, "statement_timeout").await, "0", "{schema}");
        let broker = Broker::default();
        let relay = Running::start(quick(pool, broker.clone()));
        let send = format!("SELECT {quoted}.idem_send('things', '\"a\"'::jsonb)");
        db.server.psql(&db.name, &send);
        broker.until_taken(1).await;
        relay.stop().await;
    }
}

/// Goal: a schema name cannot end its quotes and inject SQL or another option. No such schema
/// exists, so the functions are not found.
#[tokio::test]
async fn hostile_schema_name_cannot_inject_sql_or_options() {
    let db = Database::create();
    for schema in [
        r#"a"b'c\d"#,
        r#"a\\" -c statement_timeout=7 "b"#,
        "a\" -c\tstatement_timeout=7",
        "a' options='-c x",
    ] {
        let pool = pool(&db, schema);
        let quoted = format!("\"{}\"", schema.replace('"', "\"\""));
        assert_eq!(
            setting(&pool, "search_path").await,
            format!("{quoted}, \"$user\", public")
        );
        assert_eq!(setting(&pool, "statement_timeout").await, "0", "{schema}");
    }
}

/// Goal: the options of the connection string still apply when a schema is set.
#[tokio::test]
async fn connection_options_stay_in_effect_with_a_schema() {
    let db = Database::create();
    let url = format!("{} options='-c statement_timeout=7s'", db.direct_url());
    let config = PoolConfig::parse(&url).unwrap().schema("api").unwrap();
    let pool = config.build().unwrap();
    assert_eq!(setting(&pool, "statement_timeout").await, "7s");
    assert_eq!(
        setting(&pool, "search_path").await,
        "\"api\", \"$user\", public"
    );
}

#[test]
fn invalid_or_second_schema_fails() {
    let config = PoolConfig::parse("host=/tmp user=a").unwrap();
    let long = "x".repeat(64);
    for schema in ["", "a\0b", &long] {
        let error = config.clone().schema(schema).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let twice = PoolConfig::parse("host=/tmp user=a options='-c search_path=b'").unwrap();
    let error = twice.schema("a").unwrap_err().to_string();
    assert!(error.contains("search_path"), "{error}");
}

/// Goal: a pooler that does not support the option rejects the first connection. The client does
/// not use `SET` instead, because it would change sessions that other clients use too.
#[tokio::test]
async fn pgbouncer_in_transaction_mode_rejects_the_schema() {
    let install = Install::from_env().unwrap();
    let cluster = Cluster::builder(&install)
        .name("schema")
        .preload(false)
        .start()
        .unwrap();
    let proxy = PgBouncer::start(&cluster, "postgres").unwrap();
    let config = PoolConfig::parse(&proxy.connection_string()).unwrap();
    let error = config
        .clone()
        .schema("api")
        .unwrap()
        .build()
        .unwrap()
        .get()
        .await
        .unwrap_err();
    let error = idem_client::Error::from(error).to_string();
    assert!(error.contains("startup parameter"), "{error}");

    // With PgBouncer, the search path must be set for the role.
    cluster
        .psql(
            "postgres",
            "CREATE SCHEMA api; CREATE EXTENSION idem SCHEMA api;
             ALTER ROLE postgres SET search_path = api, public",
        )
        .unwrap();
    let pool = config.build().unwrap();
    relay_preflight(&**pool.get().await.unwrap()).await.unwrap();
}
