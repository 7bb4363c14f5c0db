//! Tests of clusters on a real server. `cargo xtask setup` installs the programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use idem_cluster::{Builder, Cluster, Install, Shutdown, is_running, wait_for};

const DEADLINE: Duration = Duration::from_secs(30);

/// Returns the builder of a small cluster without the extension, which these tests do not need.
fn plain(name: &str) -> Builder {
    let install = Install::from_env().expect("no install: run cargo xtask setup");
    Cluster::builder(&install)
        .name(name)
        .preload(false)
        .setting("shared_buffers", "16MB")
}

fn directories(cluster: &Cluster) -> [PathBuf; 2] {
    [
        cluster.data_dir().to_path_buf(),
        cluster.socket_dir().to_path_buf(),
    ]
}

#[test]
fn cluster_runs_sql_and_leaves_nothing_behind() {
    let cluster = plain("sql")
        .setting("application_name", "it's")
        .start()
        .unwrap();
    assert_eq!(
        cluster
            .psql("postgres", "SELECT 1, 'a'; SHOW application_name")
            .unwrap(),
        "1|a\npsql"
    );
    assert_eq!(
        cluster
            .psql(
                "postgres",
                "SELECT reset_val FROM pg_settings WHERE name = 'fsync'"
            )
            .unwrap(),
        "off"
    );
    let own_files = cluster
        .psql(
            "postgres",
            "SELECT setting FROM pg_config WHERE name = 'SHAREDIR'",
        )
        .unwrap();
    assert_eq!(
        Path::new(&own_files),
        cluster.install().share_dir().canonicalize().unwrap()
    );

    let (directories, process) = (directories(&cluster), process(cluster.pid().unwrap()));
    assert!(process.exists() && directories.iter().all(|dir| dir.exists()));
    drop(cluster);
    assert!(!process.exists() && !directories.iter().any(|dir| dir.exists()));
}

#[test]
fn error_shows_its_sqlstate_and_ends_the_script() {
    let cluster = plain("errors").start().unwrap();
    let error = cluster
        .psql("postgres", "SELECT 1/0; CREATE TABLE never ()")
        .unwrap_err();
    assert!(format!("{error:#}").contains("22012"), "{error:#}");
    assert_eq!(
        cluster
            .psql("postgres", "SELECT to_regclass('never') IS NULL")
            .unwrap(),
        "t"
    );
}

#[test]
fn server_that_cannot_start_reports_the_reason() {
    let error = plain("broken")
        .setting("shared_buffers", "no number")
        .start()
        .err()
        .unwrap();
    assert!(format!("{error:#}").contains("shared_buffers"), "{error:#}");
}

#[test]
fn committed_rows_survive_every_kind_of_stop() {
    let mut cluster = plain("stops").start().unwrap();
    cluster.psql("postgres", "CREATE TABLE t (n int)").unwrap();
    let insert = "INSERT INTO t VALUES (1)";

    cluster.psql("postgres", insert).unwrap();
    cluster.restart().unwrap();
    cluster.psql("postgres", insert).unwrap();
    cluster.stop(Shutdown::Immediate).unwrap();
    cluster.start().unwrap();
    cluster.psql("postgres", insert).unwrap();
    cluster.kill().unwrap();
    cluster.start().unwrap();
    assert_eq!(
        cluster.psql("postgres", "SELECT count(*) FROM t").unwrap(),
        "3"
    );
}

#[test]
fn crashed_backend_makes_the_server_recover() {
    let cluster = plain("crash").start().unwrap();
    let mut victim = cluster
        .command("psql")
        .unwrap()
        .args(["-Xc", "SELECT pg_sleep(600)"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let find = "SELECT pid FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'";
    wait_for("the victim sleeps", DEADLINE, || {
        Ok(!cluster.psql("postgres", find)?.is_empty())
    })
    .unwrap();
    let pid = cluster.psql("postgres", find).unwrap().parse().unwrap();

    let server = cluster.pid();
    cluster.crash_backend(pid).unwrap();
    cluster.wait_until_ready(DEADLINE).unwrap();
    assert!(!victim.wait().unwrap().success());
    assert_eq!(cluster.psql("postgres", find).unwrap(), "");
    assert_eq!(cluster.pid(), server, "the postmaster keeps running");
    assert!(
        cluster
            .log()
            .unwrap()
            .contains("all server processes terminated; reinitializing")
    );
}

#[test]
fn standby_follows_and_can_be_promoted() {
    let primary = plain("primary").start().unwrap();
    let standby = primary.standby().start().unwrap();
    primary
        .psql("postgres", "CREATE TABLE t AS SELECT 42 AS n")
        .unwrap();
    let position = primary
        .psql("postgres", "SELECT pg_current_wal_flush_lsn()")
        .unwrap();
    let behind = format!("SELECT pg_last_wal_replay_lsn() >= '{position}'");
    wait_for("the standby catches up", DEADLINE, || {
        Ok(standby.psql("postgres", &behind)? == "t")
    })
    .unwrap();
    assert_eq!(standby.psql("postgres", "SELECT n FROM t").unwrap(), "42");
    let error = standby
        .psql("postgres", "INSERT INTO t VALUES (1)")
        .unwrap_err();
    assert!(format!("{error:#}").contains("25006"), "{error:#}");

    drop(primary);
    standby.promote().unwrap();
    assert_eq!(
        standby
            .psql("postgres", "INSERT INTO t VALUES (1) RETURNING n")
            .unwrap(),
        "1"
    );
}

#[test]
fn data_in_a_directory_of_the_caller_is_kept() {
    let first = plain("keeps").start().unwrap();
    let dir = first.data_dir().parent().unwrap().join("mine");
    let second = plain("keeps").data_dir(&dir).start().unwrap();
    second.psql("postgres", "CREATE TABLE t ()").unwrap();
    drop(second);
    let third = plain("keeps").data_dir(&dir).start().unwrap();
    assert_eq!(
        third.psql("postgres", "SELECT to_regclass('t')").unwrap(),
        "t"
    );
}

#[test]
fn programs_find_the_server_by_their_environment() {
    let cluster = plain("programs").start().unwrap();
    let dump = cluster.run("pg_dump", ["--schema-only"], &[]).unwrap();
    assert!(dump.contains("PostgreSQL database dump complete"), "{dump}");
    let version = cluster
        .run("pg_isolation_regress", ["--version"], &[])
        .unwrap();
    assert!(
        version.contains(&cluster.install().version().to_string()),
        "{version}"
    );
    assert!(cluster.run("no_such_program", [""; 0], &[]).is_err());
}

/// The test cannot kill its own process, so the owner is a child process: the same binary, which
/// runs only this test and has a variable set.
#[test]
fn server_does_not_outlive_its_killed_owner() {
    const ROLE: &str = "IDEM_CLUSTER_TEST_OWNER";
    if std::env::var_os(ROLE).is_some() {
        let cluster = plain("orphan").start().unwrap();
        println!(
            "SERVER {} {}",
            cluster.pid().unwrap(),
            cluster.data_dir().display()
        );
        loop {
            std::thread::park();
        }
    }

    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "server_does_not_outlive_its_killed_owner",
            "--nocapture",
        ])
        .env(ROLE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(owner.stdout.take().unwrap()));
    let line = lines
        .map(Result::unwrap)
        .find(|line| line.contains("SERVER"))
        .expect("the owner did not print its server");
    let mut words = line.split_once("SERVER ").unwrap().1.split(' ');
    let server = words.next().unwrap().parse().unwrap();
    let data_dir = PathBuf::from(words.next().unwrap());
    assert!(is_running(server) && data_dir.exists());

    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_for("the server ends", DEADLINE, || Ok(!is_running(server))).unwrap();
    drop(plain("heir").start().unwrap());
    assert!(!data_dir.exists(), "the next cluster removes the data");
}

fn process(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}
