//! Helpers of the test programs: idem-relay as a process, and a NATS stream.

// Each test program uses only some of these helpers.
#![allow(dead_code)]

use std::{
    fs::File,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    process::{Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

use idem_brokers::Nats;
use idem_cluster::{Cluster, Process};
use nix::sys::signal::Signal;

/// The longest time to wait for a state. It is long because the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(60);

pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_idem-relay"));
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("IDEM_RELAY_"))
    {
        command.env_remove(name);
    }
    command
}

pub fn answer(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns a port that was free when this function tried it.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// A running relay. It is killed when this value is dropped, and also when the test process is
/// killed.
pub struct Running {
    process: Process,
    port: u16,
}

impl Running {
    pub fn start(cluster: &Cluster, kind: &str, broker: &str) -> Self {
        let mut command = program();
        command.args(["--broker", kind, "--broker-url", broker]);
        Self::start_command(cluster, command)
    }

    /// Starts a relay with these arguments. The relay writes its log to `log`.
    pub fn start_with(cluster: &Cluster, arguments: &[&str], log: File) -> Self {
        let mut command = program();
        command.args(arguments);
        Self::spawn(cluster, command, log)
    }

    /// Starts a relay that may have at most 120 open files.
    pub fn start_with_few_descriptors(cluster: &Cluster, nats: &str) -> Self {
        let mut command = Command::new("sh");
        command
            .args(["-c", "ulimit -n 120; exec \"$0\" \"$@\""])
            .arg(env!("CARGO_BIN_EXE_idem-relay"))
            .args(["--broker", "nats", "--broker-url", nats]);
        Self::start_command(cluster, command)
    }

    pub fn start_command(cluster: &Cluster, command: Command) -> Self {
        let log = File::from(std::io::stderr().as_fd().try_clone_to_owned().unwrap());
        Self::spawn(cluster, command, log)
    }

    fn spawn(cluster: &Cluster, mut command: Command, log: File) -> Self {
        let port = free_port();
        command
            .env(
                "IDEM_RELAY_DATABASE_URL",
                cluster.connection_string("postgres"),
            )
            .args(["--listen", &format!("127.0.0.1:{port}")]);
        let process = Process::spawn(command, log, &[Signal::SIGKILL]).unwrap();
        Self { process, port }
    }

    /// Sends this text to the relay over a new connection. Reads of the connection have a time limit.
    pub fn send(&self, text: &str) -> TcpStream {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        connection.set_read_timeout(Some(DEADLINE)).unwrap();
        connection.write_all(text.as_bytes()).unwrap();
        connection
    }

    /// Returns the status line and the body of the response to a GET request, or `None` while the
    /// relay does not listen.
    pub fn get(&self, path: &str) -> Option<(String, String)> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        write!(
            connection,
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        )
        .ok()?;
        let mut text = String::new();
        connection.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        Some((head.lines().next()?.to_owned(), body.to_owned()))
    }

    pub fn get_until(&self, path: &str, is_fine: impl Fn(&str, &str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let response = self.get(path);
            if let Some((status, body)) = &response
                && is_fine(status, body)
            {
                return body.clone();
            }
            assert!(
                start.elapsed() < DEADLINE,
                "{path} still returns {response:?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn terminate(self) -> ExitStatus {
        self.process.stop(Signal::SIGTERM, DEADLINE).unwrap();
        self.process.exit_status().unwrap()
    }
}

pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < DEADLINE, "{what}: still not");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn on_runtime<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(work)
}

pub fn make_stream(nats: &Nats) {
    on_runtime(async {
        let client = async_nats::connect(nats.url()).await.unwrap();
        let stream = async_nats::jetstream::stream::Config {
            name: "FACTS".into(),
            subjects: vec!["facts".into()],
            ..Default::default()
        };
        async_nats::jetstream::new(client)
            .create_stream(stream)
            .await
            .unwrap();
    });
}

pub fn stream_length(nats: &Nats) -> u64 {
    on_runtime(async {
        let client = async_nats::connect(nats.url()).await.unwrap();
        let mut stream = async_nats::jetstream::new(client)
            .get_stream("FACTS")
            .await
            .unwrap();
        stream.info().await.unwrap().state.messages
    })
}
