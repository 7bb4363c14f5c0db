//! The program as an operator meets it: a real database, a real broker, signals, HTTP.

mod support;

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    process::Output,
};

use idem_brokers::{Nats, RabbitMq};
use idem_cluster::{Cluster, Install};
use support::{Running, answer, make_stream, program, stderr, stream_length};

fn server() -> Cluster {
    let install = Install::from_env().expect("cargo xtask setup makes the install");
    let cluster = Cluster::builder(&install)
        .name("idem-relay")
        .start()
        .unwrap();
    cluster.psql("postgres", "CREATE EXTENSION idem").unwrap();
    cluster
}

fn is_200(status: &str, _: &str) -> bool {
    status.contains(" 200 ")
}

#[test]
fn the_outbox_reaches_the_broker_and_a_signal_ends_it_in_order() {
    let cluster = server();
    let mut nats = Nats::start().unwrap();
    make_stream(&nats);
    let relay = Running::start(&cluster, "nats", &nats.url());
    relay.get_until("/livez", is_200);
    let ready = relay.get_until("/readyz", is_200);
    assert_eq!(ready, "database: ok\nbroker: not asked yet\n");

    let send = "SELECT count(idem_send('facts', to_jsonb(n))) FROM generate_series(1, 200) n";
    assert_eq!(cluster.psql("postgres", send).unwrap().trim(), "200");
    let published =
        |body: &str| sum_of(body, "idem_relay_published_total", r#"outcome="published""#);
    relay.get_until("/metrics", |_, body| published(body) >= 200.0);
    assert_eq!(stream_length(&nats), 200);

    // The broker goes away and comes again: not ready, then ready, and nothing is lost.
    nats.kill().unwrap();
    cluster.psql("postgres", send).unwrap();
    relay.get_until("/readyz", |status, body| {
        status.contains(" 503 ") && body.contains("broker: away")
    });
    relay.get_until("/livez", is_200);
    nats.start_again().unwrap();
    relay.get_until("/readyz", is_200);
    relay.get_until("/metrics", |_, body| published(body) >= 400.0);
    assert_eq!(
        stream_length(&nats),
        400,
        "a message id that came twice is dropped by the stream"
    );

    assert_eq!(relay.terminate().code(), Some(0));
    let lag = "SELECT sum(lag_messages) FROM idem.relays";
    assert_eq!(
        cluster.psql("postgres", lag).unwrap().trim(),
        "0",
        "what was published is acknowledged"
    );
}

/// The sum of all lines of one metric with this label.
fn sum_of(body: &str, name: &str, label: &str) -> f64 {
    body.lines()
        .filter(|line| line.starts_with(name) && line.contains(label))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

#[test]
fn wrong_settings_are_told_before_anything_is_begun() {
    let output = answer(&mut program());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        stderr(&output).contains("--database-url"),
        "{}",
        stderr(&output)
    );

    let output = answer(program().args(["--broker", "pigeon"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("rabbitmq"), "{}", stderr(&output));

    let output = answer(program().args(["--config", "/does/not/exist"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("/does/not/exist"),
        "{}",
        stderr(&output)
    );
}

/// The lines of a log that contain all of these texts.
fn log_lines(log: &File, texts: &[&str]) -> Vec<String> {
    let mut text = String::new();
    let mut log = log;
    log.seek(SeekFrom::Start(0)).unwrap();
    log.read_to_string(&mut text).unwrap();
    let fits = |line: &&str| texts.iter().all(|text| line.contains(text));
    text.lines().filter(fits).map(str::to_owned).collect()
}

/// Goal: a relay that starts before the stream of a subject. Invariant: I4.
#[test]
fn i4_missing_stream_is_not_ready_until_it_is_made() {
    let cluster = server();
    let nats = Nats::start().unwrap();
    let log = tempfile::tempfile().unwrap();
    // An effect that is blamed is parked at its first attempt.
    let mut config = tempfile::NamedTempFile::new().unwrap();
    config.write_all(b"[publish]\nmax-attempts = 1\n").unwrap();
    let config = config.path().display().to_string();
    let arguments = [
        "--config",
        &config,
        "--broker",
        "nats",
        "--broker-url",
        &nats.url(),
    ];
    let relay = Running::start_with(&cluster, &arguments, log.try_clone().unwrap());
    relay.get_until("/readyz", is_200);
    let send = "SELECT count(idem_send('facts', to_jsonb(n))) FROM generate_series(1, 20) n";
    cluster.psql("postgres", send).unwrap();
    let attempts = |body: &str| sum_of(body, "idem_relay_published_total", "outcome=");
    relay.get_until("/metrics", |_, body| attempts(body) >= 25.0);
    let parked = "SELECT count(*) FROM idem.parked";
    assert_eq!(cluster.psql("postgres", parked).unwrap().trim(), "0");
    let (status, body) = relay.get("/readyz").unwrap();
    assert!(
        status.contains(" 503 ") && body.contains("topic \"facts\""),
        "{status} {body}"
    );
    let metrics = relay.get("/metrics").unwrap().1;
    assert_eq!(sum_of(&metrics, "idem_relay_unavailable_topics", ""), 1.0);
    let warnings = log_lines(&log, &["\"WARN\""]);
    assert!(
        warnings.len() == 1 && warnings[0].contains("facts"),
        "{warnings:#?}"
    );

    make_stream(&nats);
    relay.get_until("/readyz", is_200);
    let published =
        |body: &str| sum_of(body, "idem_relay_published_total", r#"outcome="published""#);
    let metrics = relay.get_until("/metrics", |_, body| published(body) >= 20.0);
    assert_eq!(sum_of(&metrics, "idem_relay_unavailable_topics", ""), 0.0);
    assert_eq!(stream_length(&nats), 20);
    assert_eq!(log_lines(&log, &["\"WARN\""]).len(), 1);
    assert_eq!(relay.terminate().code(), Some(0));
}

/// Goal: the log of a relay without a queue, and then without a broker. Invariant: I4.
#[test]
fn i4_missing_queue_and_lost_broker_are_a_line_each() {
    let cluster = server();
    let mut rabbit = RabbitMq::start().unwrap();
    let log = tempfile::tempfile().unwrap();
    let arguments = ["--broker", "rabbitmq", "--broker-url", &rabbit.url()];
    let relay = Running::start_with(&cluster, &arguments, log.try_clone().unwrap());
    relay.get_until("/readyz", is_200);
    let send = "SELECT count(idem_send('facts', to_jsonb(n))) FROM generate_series(1, 20) n";
    cluster.psql("postgres", send).unwrap();
    let attempts = |body: &str, outcome: &str| sum_of(body, "idem_relay_published_total", outcome);
    let trouble = || {
        [
            log_lines(&log, &["\"WARN\""]),
            log_lines(&log, &["\"ERROR\""]),
        ]
        .concat()
    };
    relay.get_until("/metrics", |_, body| {
        attempts(body, "topic_unavailable") >= 25.0
    });
    let lines = trouble();
    assert!(
        lines.len() == 1 && lines[0].contains("NO_ROUTE"),
        "{lines:#?}"
    );

    rabbit.kill().unwrap();
    relay.get_until("/metrics", |_, body| {
        attempts(body, "\"unavailable\"") >= 5.0
    });
    let lines = trouble();
    assert!(
        lines.len() == 2 && lines[1].contains("broker is not available"),
        "{lines:#?}"
    );
    assert_eq!(relay.terminate().code(), Some(0));
}

/// Goal: the log of a relay whose Kafka is down has the relay's line only. Invariant: I4.
#[test]
fn i4_lost_kafka_is_one_line() {
    let cluster = server();
    let log = tempfile::tempfile().unwrap();
    // A port that nothing listens on.
    let arguments = ["--broker", "kafka", "--broker-url", "127.0.0.1:1"];
    let relay = Running::start_with(&cluster, &arguments, log.try_clone().unwrap());
    relay.get_until("/readyz", is_200);
    cluster
        .psql("postgres", "SELECT idem_send('facts', '1')")
        .unwrap();
    let attempts = |body: &str| sum_of(body, "idem_relay_published_total", "\"unavailable\"");
    relay.get_until("/metrics", |_, body| attempts(body) >= 1.0);
    let lines = [
        log_lines(&log, &["\"WARN\""]),
        log_lines(&log, &["\"ERROR\""]),
    ]
    .concat();
    assert!(
        lines.len() == 1 && lines[0].contains("broker is not available"),
        "{lines:#?}"
    );
    assert_eq!(log_lines(&log, &["rdkafka\""]), [""; 0]);
    assert_eq!(relay.terminate().code(), Some(0));
}

/// Goal: a filter that a deployment left empty. Invariant: I4.
#[test]
fn empty_log_filter_is_the_default_one() {
    let cluster = server();
    let log = tempfile::tempfile().unwrap();
    let arguments = [
        "--broker",
        "kafka",
        "--broker-url",
        "127.0.0.1:1",
        "--log",
        "",
    ];
    let relay = Running::start_with(&cluster, &arguments, log.try_clone().unwrap());
    relay.get_until("/readyz", is_200);
    assert_eq!(log_lines(&log, &["the relay works"]).len(), 1);
    assert_eq!(relay.terminate().code(), Some(0));
}

/// Goal: a relay that starts before `idem_create_relay`. Invariant: I4.
#[test]
fn i4_missing_relay_is_not_ready_until_it_is_created() {
    let cluster = server();
    let nats = Nats::start().unwrap();
    make_stream(&nats);
    let log = tempfile::tempfile().unwrap();
    let arguments = [
        "--broker",
        "nats",
        "--broker-url",
        &nats.url(),
        "--relay",
        "later",
    ];
    let relay = Running::start_with(&cluster, &arguments, log.try_clone().unwrap());
    relay.get_until("/readyz", |status, body| {
        status.contains(" 503 ") && body.contains("42704")
    });
    relay.get_until("/livez", is_200);
    cluster
        .psql("postgres", "SELECT idem_create_relay('later')")
        .unwrap();
    relay.get_until("/readyz", is_200);
    cluster
        .psql("postgres", "SELECT idem_send('facts', '1')")
        .unwrap();
    let published =
        |body: &str| sum_of(body, "idem_relay_published_total", r#"outcome="published""#);
    relay.get_until("/metrics", |_, body| published(body) >= 1.0);
    let warnings = log_lines(&log, &["\"WARN\""]);
    assert!(
        warnings.len() == 1 && warnings[0].contains("42704"),
        "{warnings:#?}"
    );
    assert_eq!(relay.terminate().code(), Some(0));
}

/// Runs `idem-relay --check`.
fn check(database: &str, broker: [&str; 2], arguments: &[&str]) -> Output {
    let [kind, url] = broker;
    let mut command = program();
    command.args([
        "--check",
        "--broker",
        kind,
        "--broker-url",
        url,
        "--database-url",
        database,
    ]);
    answer(command.args(arguments))
}

#[test]
fn check_fails_when_the_database_refuses() {
    let cluster = server();
    let nats = Nats::start().unwrap();
    let (url, database) = (nats.url(), cluster.connection_string("postgres"));
    let fine = check(&database, ["nats", &url], &[]);
    assert!(fine.status.success(), "{fine:?}");
    assert!(
        String::from_utf8_lossy(&fine.stdout).contains("1 partition"),
        "{fine:?}"
    );

    let no_relay = check(&database, ["nats", &url], &["--relay", "nobody"]);
    assert_eq!(no_relay.status.code(), Some(3), "{no_relay:?}");
    assert!(
        stderr(&no_relay).contains("idem_create_relay"),
        "{}",
        stderr(&no_relay)
    );

    let no_extension = check(&cluster.connection_string("template1"), ["nats", &url], &[]);
    assert_eq!(no_extension.status.code(), Some(3), "{no_extension:?}");

    let no_server = check("host=127.0.0.1 port=1 user=nobody", ["nats", &url], &[]);
    assert_eq!(no_server.status.code(), Some(3), "{no_server:?}");
    assert!(
        stderr(&no_server).contains("Connection refused"),
        "{}",
        stderr(&no_server)
    );
}

/// Goal: `--check` meets all that a relay meets later: a version that does not fit, a grant that is
/// missing.
#[test]
fn check_fails_when_the_database_is_not_complete() {
    let cluster = server();
    let nats = Nats::start().unwrap();
    let (url, database) = (nats.url(), cluster.connection_string("postgres"));
    let set = |version: &str| {
        let set =
            format!("UPDATE pg_extension SET extversion = '{version}' WHERE extname = 'idem'");
        cluster.psql("postgres", &set).unwrap();
    };
    for (version, words) in [
        ("0.0.9", "ALTER EXTENSION idem UPDATE"),
        ("9.9.9", "restart the server"),
    ] {
        set(version);
        let refused = check(&database, ["nats", &url], &[]);
        assert_eq!(refused.status.code(), Some(3), "{refused:?}");
        let error = stderr(&refused);
        assert!(error.contains(version) && error.contains(words), "{error}");
    }
    set(env!("CARGO_PKG_VERSION"));

    let grant = "SELECT idem_grant('partly', 'relay')";
    let partly = format!(
        "CREATE ROLE partly LOGIN; {grant}; REVOKE EXECUTE ON FUNCTION idem_hand_over FROM partly"
    );
    cluster.psql("postgres", &partly).unwrap();
    let as_partly = format!("{database} user=partly");
    assert!(
        check(&as_partly, ["nats", &url], &[]).status.success(),
        "it hands nothing over"
    );
    cluster
        .psql(
            "postgres",
            "REVOKE EXECUTE ON FUNCTION idem_relay_ack FROM partly",
        )
        .unwrap();
    let refused = check(&as_partly, ["nats", &url], &[]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    let error = stderr(&refused);
    assert!(
        error.contains("idem_relay_ack") && error.contains(grant),
        "{error}"
    );
}

/// Goal: the extension is in a schema that the role's path does not have.
#[test]
fn check_finds_the_extension_in_its_schema() {
    let cluster = server();
    let nats = Nats::start().unwrap();
    let (url, database) = (nats.url(), cluster.connection_string("moved"));
    cluster.psql("postgres", "CREATE DATABASE moved").unwrap();
    cluster
        .psql(
            "moved",
            "CREATE SCHEMA api; CREATE EXTENSION idem SCHEMA api",
        )
        .unwrap();
    let refused = check(&database, ["nats", &url], &[]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    assert!(
        stderr(&refused).contains("database.schema"),
        "{}",
        stderr(&refused)
    );
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "[database]\nschema = \"api\"").unwrap();
    let fine = check(
        &database,
        ["nats", &url],
        &["--config", &file.path().display().to_string()],
    );
    assert!(fine.status.success(), "{fine:?}");
}

/// Goal: an operator checks the settings that the package installs.
#[test]
fn check_reads_the_settings_of_the_package() {
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/debian/idem-relay.toml");
    let cluster = server();
    let nats = Nats::start().unwrap();
    let database = cluster.connection_string("postgres");
    let fine = check(&database, ["nats", &nats.url()], &["--config", sample]);
    assert!(fine.status.success(), "{fine:?}");
}

#[test]
fn check_fails_without_a_broker() {
    let cluster = server();
    let database = cluster.connection_string("postgres");
    // A port that nothing listens on: each broker's client has its own words for that.
    for (kind, url, said) in [
        ("rabbitmq", "amqp://127.0.0.1:1", "Connection refused"),
        ("nats", "nats://127.0.0.1:1", "Connection refused"),
        ("kafka", "127.0.0.1:1", "transport failure"),
    ] {
        let no_broker = check(&database, [kind, url], &[]);
        assert_eq!(no_broker.status.code(), Some(3), "{kind}: {no_broker:?}");
        let error = stderr(&no_broker);
        assert!(
            error.contains("the broker is not available") && error.contains(said),
            "{kind}: {error}"
        );
    }
}

#[test]
fn check_fails_when_the_broker_refuses() {
    let cluster = server();
    let nats = Nats::start_with("authorization { user: relay, password: right }").unwrap();
    let database = cluster.connection_string("postgres");
    let url = |password: &str| {
        nats.url()
            .replace("nats://", &format!("nats://relay:{password}@"))
    };
    let refused = check(&database, ["nats", &url("wrong")], &[]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    assert!(
        stderr(&refused).contains("authorization violation"),
        "{}",
        stderr(&refused)
    );
    let fine = check(&database, ["nats", &url("right")], &[]);
    assert!(fine.status.success(), "{fine:?}");
}

#[test]
fn help_says_what_it_does_what_the_role_needs_and_how_it_ends() {
    let output = answer(program().arg("--help"));
    let help = String::from_utf8(output.stdout).unwrap();
    for needed in [
        "Publishes the outbox",
        "--database-url",
        "IDEM_RELAY_DATABASE_URL",
        "idem_grant('relay', 'relay')",
        "Exit codes",
        "/readyz",
    ] {
        assert!(help.contains(needed), "{needed} is missing:\n{help}");
    }
}

/// Goal: systemd restarts a relay whose port is taken. Exit code 2 would stop that.
#[test]
fn taken_port_is_no_fault_of_the_settings() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = answer(program().args([
        "--database-url=host=127.0.0.1 port=1 sslmode=disable",
        "--broker=nats",
        "--broker-url=nats://127.0.0.1:1",
        &format!("--listen={address}"),
    ]));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = stderr(&output);
    assert!(said.contains(&format!("cannot bind {address}")), "{said}");
}

/// Goal: one file of settings for the service, which reads copies of the files that it names, and
/// for an administrator, who reads the files themselves.
#[test]
fn relative_paths_are_relative_to_the_settings() {
    let directory = tempfile::tempdir().unwrap();
    let authority = idem_brokers::Authority::create().unwrap();
    std::fs::copy(authority.ca(), directory.path().join("ca.pem")).unwrap();
    let path = directory.path().join("settings.toml");
    let settings = "[database]\nurl = \"host=127.0.0.1 port=1\"\nca = \"ca.pem\"\n\
                    [broker]\nkind = \"nats\"\nurl = \"tls://127.0.0.1:1\"\nca = \"ca.pem\"\n";
    std::fs::write(&path, settings).unwrap();
    let output = answer(program().args(["--check", "--config"]).arg(&path));
    // The files are read, and the database is away.
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}
