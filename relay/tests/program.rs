//! Tests of the program as an operator uses it: with a database, a broker, signals and HTTP.

mod support;

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    process::Output,
};

use idem_brokers::{Nats, RabbitMq};
use idem_cluster::{Cluster, Install};
use support::{Running, answer, make_stream, program, stderr, stream_length, until};

fn server() -> Cluster {
    let install = Install::from_env().expect("run cargo xtask setup first");
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

/// Goal: the program publishes the outbox to the broker, also after the broker was lost. After
/// SIGTERM, the program stops and each published effect is acknowledged.
#[test]
fn outbox_is_published_and_a_signal_stops_the_program() {
    let cluster = server();
    let mut nats = Nats::start().unwrap();
    make_stream(&nats);
    let relay = Running::start(&cluster, "nats", &nats.url());
    relay.get_until("/livez", is_200);
    let ready = relay.get_until("/readyz", is_200);
    assert_eq!(ready, "database: ok\nbroker: not used yet\n");

    let send = "SELECT count(idem_send('facts', to_jsonb(n))) FROM generate_series(1, 200) n";
    assert_eq!(cluster.psql("postgres", send).unwrap().trim(), "200");
    let published =
        |body: &str| sum_of(body, "idem_relay_published_total", r#"outcome="published""#);
    relay.get_until("/metrics", |_, body| published(body) >= 200.0);
    assert_eq!(stream_length(&nats), 200);

    // The broker stops and starts again. The relay is not ready in between, and loses no effect.
    nats.kill().unwrap();
    cluster.psql("postgres", send).unwrap();
    relay.get_until("/readyz", |status, body| {
        status.contains(" 503 ") && body.contains("broker: not available")
    });
    relay.get_until("/livez", is_200);
    nats.start_again().unwrap();
    relay.get_until("/readyz", is_200);
    relay.get_until("/metrics", |_, body| published(body) >= 400.0);
    assert_eq!(
        stream_length(&nats),
        400,
        "the stream drops a repeated message id"
    );

    assert_eq!(relay.terminate().code(), Some(0));
    let lag = "SELECT sum(lag_messages) FROM idem.relays";
    assert_eq!(
        cluster.psql("postgres", lag).unwrap().trim(),
        "0",
        "published effects are acknowledged"
    );
}

/// Returns the sum of all values of one metric with this label.
fn sum_of(body: &str, name: &str, label: &str) -> f64 {
    body.lines()
        .filter(|line| line.starts_with(name) && line.contains(label))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// Goal: missing settings, an unknown broker and an unreadable file end the program with exit code
/// 2.
#[test]
fn wrong_settings_are_errors_before_the_start() {
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

/// Returns the output of `--check` with complete settings, and with these variables. Nothing listens
/// at the addresses of the settings, so the exit code of valid settings is 3.
fn check_with(variables: &[(&str, &str)]) -> Output {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(
        file,
        "relay = \"orders\"\n[database]\nurl = \"host=127.0.0.1 port=1\""
    )
    .unwrap();
    writeln!(
        file,
        "[broker]\nkind = \"nats\"\nurl = \"nats://127.0.0.1:1\""
    )
    .unwrap();
    let mut command = program();
    command.args(["--check", "--config"]).arg(file.path());
    answer(command.envs(variables.iter().copied()))
}

/// Goal: a deployment may set a variable to an empty text. The setting of the file then applies.
#[test]
fn empty_variables_do_not_override_the_file() {
    let names = [
        "NAME",
        "DATABASE_URL",
        "BROKER",
        "BROKER_URL",
        "LISTEN",
        "LOG",
        "LOG_FORMAT",
    ];
    let names = names.map(|name| format!("IDEM_RELAY_{name}"));
    let empty: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
    let output = check_with(&empty);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(stderr(&output).contains("Connection refused"), "{output:?}");
}

/// Goal: a variable that no setting reads is an error that names the nearest setting.
#[test]
fn unknown_variable_is_an_error_that_names_the_nearest() {
    for (name, nearest) in [
        ("IDEM_RELAY_EXCHANGE", "broker.exchange"),
        ("IDEM_RELAY_PUBLISH_MAX_ATTEMPTS", "publish.max-attempts"),
        ("IDEM_RELAY_DATABSE_URL", "IDEM_RELAY_DATABASE_URL"),
        ("IDEM_RELAY_RELAY", "IDEM_RELAY_NAME"),
        ("IDEM_RELAY_BROKER_KIND", "IDEM_RELAY_BROKER"),
    ] {
        let output = check_with(&[(name, "s3cret")]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let error = stderr(&output);
        assert!(error.contains(name) && error.contains(nearest), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

/// Goal: Kubernetes sets variables for a service that is named like the program.
#[test]
fn variables_of_a_kubernetes_service_are_no_settings() {
    let output = check_with(&[
        ("IDEM_RELAY_SERVICE_HOST", "10.0.0.1"),
        ("IDEM_RELAY_SERVICE_PORT_METRICS", "9187"),
        ("IDEM_RELAY_PORT", "tcp://10.0.0.1:9187"),
        ("IDEM_RELAY_PORT_9187_TCP_ADDR", "10.0.0.1"),
        ("IDEM_RELAY_METRICS_SERVICE_HOST", "10.0.0.2"),
        ("IDEM_RELAY_METRICS_PORT_9187_TCP", "tcp://10.0.0.2:9187"),
    ]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

/// Goal: a reserved character in a password is an error that says how to write it.
#[test]
fn reserved_character_in_a_password_is_an_error() {
    for url in [
        "amqp://u:12#s3cret@b",
        "amqp://u:12/s3cret@b",
        "amqp://u:s3cret@b#c",
        "nats://u:12#s3cret@b",
        "nats://u:s3/cret@b",
        "nats://12?s3cret@b",
    ] {
        let kind = match url.starts_with("amqp") {
            true => "rabbitmq",
            false => "nats",
        };
        let variables = [("IDEM_RELAY_BROKER", kind), ("IDEM_RELAY_BROKER_URL", url)];
        let output = check_with(&variables);
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{url}: {error}");
        assert!(error.contains("%23") && !error.contains("s3"), "{error}");
    }
}

/// Goal: half-sent requests do not use up the descriptors that the relay needs, and end.
#[test]
fn half_sent_requests_do_not_stop_the_relay() {
    let cluster = server();
    let nats = Nats::start().unwrap();
    make_stream(&nats);
    let relay = Running::start_with_few_descriptors(&cluster, &nats.url());
    relay.get_until("/readyz", is_200);
    let mut halves: Vec<_> = (0..130)
        .map(|_| relay.send("GET /livez HTTP/1.1\r\n"))
        .collect();
    // The relay then needs new connections to the database.
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE application_name = 'idem-relay'";
    cluster.psql("postgres", end).unwrap();
    cluster
        .psql("postgres", "SELECT idem_send('facts', '1')")
        .unwrap();
    until("the effect is published", || stream_length(&nats) == 1);
    // Each connection ends. The relay accepts further connections when others have ended.
    for half in &mut halves {
        let mut reply = Vec::new();
        assert!(is_ended(half.read_to_end(&mut reply)), "{reply:?}");
    }
    relay.get_until("/livez", is_200);
}

/// Returns whether the other side has ended the connection, in time.
fn is_ended(read: std::io::Result<usize>) -> bool {
    match read {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Returns the lines of a log that contain all of these texts.
fn log_lines(log: &File, texts: &[&str]) -> Vec<String> {
    let mut text = String::new();
    let mut log = log;
    log.seek(SeekFrom::Start(0)).unwrap();
    log.read_to_string(&mut text).unwrap();
    let fits = |line: &&str| texts.iter().all(|text| line.contains(text));
    text.lines().filter(fits).map(str::to_owned).collect()
}

/// Goal: a relay that starts before the stream of a subject exists is not ready, and publishes all
/// effects when the stream is created. Invariant: I4.
#[test]
fn i4_missing_stream_is_not_ready_until_it_is_created() {
    let cluster = server();
    let nats = Nats::start().unwrap();
    let log = tempfile::tempfile().unwrap();
    // With this setting, the first counted attempt parks an effect. Attempts without the stream
    // must not be counted.
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

/// Goal: if first a queue is missing and then the broker is lost, the relay logs one line for each.
/// Invariant: I4.
#[test]
fn i4_missing_queue_and_lost_broker_log_one_line_each() {
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

/// Goal: if Kafka is not available, the relay is not ready before an attempt has ended. It logs one
/// line, and the client library logs nothing.
/// Invariant: I4.
#[test]
fn i4_lost_kafka_logs_one_line() {
    let cluster = server();
    let log = tempfile::tempfile().unwrap();
    // No process listens on this port.
    let arguments = ["--broker", "kafka", "--broker-url", "127.0.0.1:1"];
    let relay = Running::start_with(&cluster, &arguments, log.try_clone().unwrap());
    relay.get_until("/readyz", is_200);
    cluster
        .psql("postgres", "SELECT idem_send('facts', '1')")
        .unwrap();
    let attempts = |body: &str| sum_of(body, "idem_relay_published_total", "\"unavailable\"");
    relay.get_until("/readyz", |status, body| {
        status.contains(" 503 ") && body.contains("broker: not available")
    });
    let metrics = relay.get("/metrics").unwrap().1;
    assert_eq!(attempts(&metrics), 0.0, "the first attempt has not ended");
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

/// Goal: an empty log filter, as a deployment may set, has the effect of the default filter.
/// Invariant: I4.
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
    assert_eq!(log_lines(&log, &["the relay has started"]).len(), 1);
    assert_eq!(relay.terminate().code(), Some(0));
}

/// Goal: a program that starts before `idem_create_relay` is not ready, and publishes when the
/// relay is created. Invariant: I4.
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

/// Goal: while the extension is missing, no attempt causes a warning of the server, and the relay
/// logs one warning and no notices of the server. Invariant: I4.
#[test]
fn i4_missing_extension_is_logged_once_without_notices() {
    let cluster = server();
    cluster.psql("postgres", "CREATE DATABASE bare").unwrap();
    let log = tempfile::tempfile().unwrap();
    // The server then sends many notices.
    let database = cluster.connection_string("bare") + " options='-c client_min_messages=debug5'";
    let arguments = [
        "--broker=nats",
        "--broker-url=nats://127.0.0.1:1",
        "--database-url",
        &database,
    ];
    let relay = Running::start_with(&cluster, &arguments, log.try_clone().unwrap());
    relay.get_until("/readyz", |_, body| body.contains("extension"));
    relay.get_until("/readyz", |_, _| {
        let transactions = "SELECT xact_commit + xact_rollback FROM pg_stat_database \
                            WHERE datname = 'bare'";
        let transactions = cluster.psql("postgres", transactions).unwrap();
        transactions.trim().parse::<u64>().unwrap() >= 8
    });
    assert_eq!(relay.terminate().code(), Some(0));
    assert_eq!(log_lines(&log, &["\"WARN\""]).len(), 1);
    assert_eq!(log_lines(&log, &["tokio_postgres"]).len(), 0);
    let complaints = cluster.log().unwrap();
    let complaints = complaints
        .lines()
        .filter(|line| line.contains("no transaction in progress"));
    assert_eq!(complaints.count(), 0);
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

/// Goal: `--check` ends with exit code 3 if the relay, the extension or the database server is
/// missing.
#[test]
fn check_fails_without_relay_extension_or_server() {
    let cluster = server();
    let nats = Nats::start().unwrap();
    let (url, database) = (nats.url(), cluster.connection_string("postgres"));
    let fine = check(&database, ["nats", &url], &[]);
    assert!(fine.status.success(), "{fine:?}");
    assert!(
        String::from_utf8_lossy(&fine.stdout).contains("1 partition"),
        "{fine:?}"
    );

    let no_relay = check(&database, ["nats", &url], &["--relay", "missing"]);
    assert_eq!(no_relay.status.code(), Some(3), "{no_relay:?}");
    assert!(
        stderr(&no_relay).contains("idem_create_relay"),
        "{}",
        stderr(&no_relay)
    );

    let no_extension = check(&cluster.connection_string("template1"), ["nats", &url], &[]);
    assert_eq!(no_extension.status.code(), Some(3), "{no_extension:?}");

    let no_server = check("host=127.0.0.1 port=1 user=missing", ["nats", &url], &[]);
    assert_eq!(no_server.status.code(), Some(3), "{no_server:?}");
    assert!(
        stderr(&no_server).contains("Connection refused"),
        "{}",
        stderr(&no_server)
    );
}

/// Goal: `--check` fails for two problems that would stop the relay later: an incompatible version
/// and a missing grant.
#[test]
fn check_fails_for_a_wrong_version_or_a_missing_grant() {
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
        "idem_hand_over is not needed to publish to a broker"
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

/// Goal: the program finds the extension in a schema that is not in the `search_path` of the role.
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

/// Goal: `--check` accepts the settings that the package installs.
#[test]
fn check_accepts_the_settings_of_the_package() {
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/debian/idem-relay.toml");
    let cluster = server();
    let nats = Nats::start().unwrap();
    let database = cluster.connection_string("postgres");
    let fine = check(&database, ["nats", &nats.url()], &["--config", sample]);
    assert!(fine.status.success(), "{fine:?}");
}

/// Goal: `--check` ends with exit code 3 and the error of the client library if the broker is not
/// available.
#[test]
fn check_fails_without_a_broker() {
    let cluster = server();
    let database = cluster.connection_string("postgres");
    // No process listens on this port. Each client library has a different error text.
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

/// Goal: `--check` ends with exit code 3 if the broker rejects the password.
#[test]
fn check_fails_when_the_broker_rejects_the_login() {
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

/// Goal: `--check` publishes nothing, so it says that it does not check the permission to publish.
#[test]
fn check_says_what_it_does_not_check() {
    let cluster = server();
    let settings = "authorization { users: [{ user: r, password: p, \
                    permissions: { publish: { deny: \">\" } } }] }";
    let nats = Nats::start_with(settings).unwrap();
    let url = nats.url().replace("nats://", "nats://r:p@");
    let output = check(&cluster.connection_string("postgres"), ["nats", &url], &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        printed.contains("not checked") && printed.contains("may publish"),
        "{printed}"
    );
}

/// Goal: `--help` describes the program, its settings, the grant and the exit codes.
#[test]
fn help_documents_the_options_the_grant_and_the_exit_codes() {
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

/// Goal: if the port is in use, the exit code is not 2. systemd restarts a relay except after exit
/// code 2, and the port may be free later.
#[test]
fn port_in_use_is_not_an_error_of_the_settings() {
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

/// Goal: relative paths in the settings file are relative to the directory of this file. So the
/// same settings work for the service, which reads copies of all files, and for an administrator
/// with the original files.
#[test]
fn relative_paths_are_relative_to_the_settings_file() {
    let directory = tempfile::tempdir().unwrap();
    let authority = idem_brokers::Authority::create().unwrap();
    std::fs::copy(authority.ca(), directory.path().join("ca.pem")).unwrap();
    let path = directory.path().join("settings.toml");
    let settings = "[database]\nurl = \"host=127.0.0.1 port=1\"\nca = \"ca.pem\"\n\
                    [broker]\nkind = \"nats\"\nurl = \"tls://127.0.0.1:1\"\nca = \"ca.pem\"\n";
    std::fs::write(&path, settings).unwrap();
    let output = answer(program().args(["--check", "--config"]).arg(&path));
    // The exit code shows that the files were read and that the database is not available.
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}
