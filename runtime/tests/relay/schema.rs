//! Tests of an extension whose functions are in a separate schema. "Path" stands for `search_path`.

use std::collections::HashSet;

use deadpool_postgres::Pool;
use idem_brokers::PgBouncer;
use idem_client::{ErrorKind, preflight::relay_preflight};
use idem_cluster::{Cluster, Install};
use idem_runtime::PoolConfig;
use idem_testkit::Database;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::{
    broker::Broker,
    fixtures::{Running, quick},
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
        db.psql(&format!(
            "DROP EXTENSION idem; CREATE SCHEMA {quoted};
                 CREATE EXTENSION idem SCHEMA {quoted}"
        ));
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
        db.psql(&send);
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

/// Starts a cluster with the extension in the schema `api`, and with another schema.
fn cluster_with_schemas() -> Cluster {
    let install = Install::from_env().unwrap();
    let cluster = Cluster::builder(&install).name("schema").start().unwrap();
    let create = "CREATE SCHEMA api; CREATE SCHEMA other; CREATE EXTENSION idem SCHEMA api";
    cluster.psql("postgres", create).unwrap();
    cluster
}

/// Returns the process id of the backend, and the schemas of its path that exist.
async fn backend_and_path(client: &Client) -> (String, String) {
    // The simple protocol prepares no statement, which PgBouncer 1.18 would not support.
    let query = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_schemas(false)";
    let messages = client.simple_query(query).await.unwrap();
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let column = |number| row.unwrap().get(number).unwrap().to_owned();
    (column(0), column(1))
}

/// Goal: through PgBouncer in transaction mode, no session has the path of another client, although
/// all clients share one backend at a time. Either the first connection fails, or every session has
/// its own path. The client does not set its path with `SET`, because this would change sessions
/// that other clients use too.
#[tokio::test]
async fn pgbouncer_rejects_the_schema_or_keeps_it_per_client() {
    let cluster = cluster_with_schemas();
    let proxy = PgBouncer::start_with_pool(&cluster, "postgres", 1).unwrap();
    let plain = PoolConfig::parse(&proxy.connection_string())
        .unwrap()
        .max_size(1);
    let in_schema = |name: &str| plain.clone().schema(name).unwrap().build().unwrap();
    let clients = [
        (in_schema("api"), "{api,public}"),
        (in_schema("other"), "{other,public}"),
        (plain.build().unwrap(), "{public}"),
    ];
    let (mut backends, mut accepted, mut rejected) = (HashSet::new(), Vec::new(), HashSet::new());
    // In this order, the backend serves each client after each other client.
    for place in [0, 1, 2, 0, 1, 2, 1, 0, 2, 0, 1, 2] {
        let (pool, path) = &clients[place];
        match pool.get().await {
            Ok(client) => {
                let (backend, actual) = backend_and_path(&client).await;
                assert_eq!(actual, *path, "client {place}");
                backends.insert(backend);
                accepted.push(place);
            }
            Err(error) => {
                let error = idem_runtime::Error::from(error).to_string();
                assert!(error.contains("startup parameter"), "{error}");
                rejected.insert(place);
            }
        }
    }
    assert!(
        backends.len() < accepted.len(),
        "the clients must share a backend: {backends:?}"
    );
    if rejected.is_empty() {
        let api = clients[0].0.get().await.unwrap();
        relay_preflight(&**api).await.unwrap();
    } else {
        assert_eq!(rejected, HashSet::from([0, 1]));
        assert!(accepted.iter().all(|place| *place == 2), "{accepted:?}");
    }
}

/// Accepts connections like a PgBouncer of version `pooler` in front of a server of version
/// `server`. A real PgBouncer cannot be used: no Debian suite has PgBouncer 1.26 and a PostgreSQL
/// before 18.
async fn accept_logins(listener: TcpListener, pooler: &str, server: &str) {
    let mut reply = vec![b'R', 0, 0, 0, 8, 0, 0, 0, 0];
    for (name, value) in [
        ("server_version", server),
        ("pgbouncer.version", pooler),
        ("pgbouncer.pool_mode", "transaction"),
    ] {
        let length = u32::try_from(size_of::<u32>() + name.len() + value.len() + 2).unwrap();
        reply.push(b'S');
        reply.extend(length.to_be_bytes());
        reply.extend([name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat());
    }
    reply.extend([b'Z', 0, 0, 0, 5, b'I']);
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut startup = [0; 1024];
        assert_ne!(stream.read(&mut startup).await.unwrap(), 0);
        stream.write_all(&reply).await.unwrap();
        // The connection stays open until the client closes it.
        let _ = stream.read(&mut startup).await;
    }
}

/// Goal: a client with a path does not connect through a pooler that can give it the path of
/// another client.
#[tokio::test]
async fn pooler_that_can_mix_up_paths_is_rejected() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let pooler = tokio::spawn(accept_logins(listener, "1.26.1", "17.6"));
    let url = format!("host=127.0.0.1 port={port} user=a dbname=a sslmode=disable");
    let config = PoolConfig::parse(&url).unwrap();
    drop(config.clone().build().unwrap().get().await.unwrap());

    let options = PoolConfig::parse(&format!("{url} options='-c Search_Path=api'")).unwrap();
    for config in [config.schema("api").unwrap(), options] {
        let error = config.build().unwrap().get().await.unwrap_err();
        let error = idem_runtime::Error::from(error);
        let text = error.to_string();
        assert!(
            text.contains("PgBouncer 1.26.1 in transaction mode"),
            "{text}"
        );
        assert_eq!(error.kind(), ErrorKind::ConnectionLost, "{text}");
    }
    pooler.abort();
}

/// Goal: a path that is set with ALTER ROLE applies through every version of PgBouncer.
#[tokio::test]
async fn path_of_the_role_applies_through_pgbouncer() {
    let cluster = cluster_with_schemas();
    let alter = "ALTER ROLE postgres SET search_path = api, public";
    cluster.psql("postgres", alter).unwrap();
    // PgBouncer starts after ALTER ROLE, because sessions that are open keep their path.
    let proxy = PgBouncer::start(&cluster, "postgres").unwrap();
    let config = PoolConfig::parse(&proxy.connection_string()).unwrap();
    let pool = config.build().unwrap();
    let client = pool.get().await.unwrap();
    relay_preflight(&**client).await.unwrap();
    assert_eq!(backend_and_path(&client).await.1, "{api,public}");
}
