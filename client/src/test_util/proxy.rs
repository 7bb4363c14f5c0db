//! A proxy between a test and the server, which loses the connection before or after COMMIT.

use std::{
    future::pending,
    io,
    net::Ipv4Addr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split},
    net::{TcpListener, TcpStream},
    select,
    task::{JoinHandle, JoinSet},
    time::sleep,
};
use tokio_postgres::{
    Client, Config,
    config::{Host, SslMode},
};

use super::{
    TestError,
    connection::{open, session_of, to_string},
    protocol::{Message, Prepared, simple_query},
};

/// The point at which the connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Crash {
    /// The connection is lost when the client sends COMMIT. The server does not execute it, and
    /// rolls back.
    BeforeCommit,
    /// The server commits, and the connection is lost before the client gets the reply.
    AfterCommit,
}

/// A proxy in front of a server of PostgreSQL. It forwards everything, until a crash is requested.
///
/// It listens on a port of 127.0.0.1 and connects to the server over TCP or a Unix socket. It
/// recognizes COMMIT in a simple query, alone or among other statements, and in the extended
/// protocol, also when it was prepared earlier. The proxy declines encryption, because it reads the
/// protocol.
///
/// Dropping the proxy closes its connections.
#[derive(Debug)]
#[must_use = "dropping it closes its connections"]
pub struct CrashProxy {
    config: Config,
    line: Arc<Line>,
    accepting: JoinHandle<()>,
}

impl CrashProxy {
    /// Starts a proxy in front of the first host of `server`, on the runtime of the caller.
    ///
    /// Fails with [`TestError::NoHost`] if `server` names no host, and with [`TestError::Io`] if no
    /// port is free.
    pub async fn start(server: &Config) -> Result<Self, TestError> {
        let target = Target::of(server).ok_or(TestError::NoHost)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let mut config = session_of(server);
        config
            .host(Ipv4Addr::LOCALHOST.to_string())
            .port(listener.local_addr()?.port())
            .ssl_mode(SslMode::Disable);
        let line = Arc::new(Line::default());
        let accepting = tokio::spawn(accept(listener, target, Arc::clone(&line)));
        Ok(Self {
            config,
            line,
            accepting,
        })
    }

    /// Returns the settings of a connection through the proxy: the user, the password, the database
    /// and the options are those of the server's settings.
    pub fn config(&self) -> Config {
        self.config.clone()
    }

    /// Returns the connection string of a connection through the proxy, for an application that
    /// reads one. It contains the password.
    pub fn connection_string(&self) -> String {
        to_string(&self.config)
    }

    /// Opens a connection through the proxy.
    pub async fn connect(&self) -> Result<Client, TestError> {
        open(&self.config).await
    }

    /// Requests one crash, at the next COMMIT of any connection. New connections work.
    ///
    /// For [`Crash::AfterCommit`], a COMMIT counts only if the server has committed. If it rolls
    /// back instead, the client gets the reply, and the request stays.
    pub fn crash_once(&self, crash: Crash) {
        self.line.request(Request {
            crash,
            is_last: false,
        });
    }

    /// Requests a crash as [`crash_once`](Self::crash_once), after which the proxy closes every new
    /// connection until [`recover`](Self::recover).
    pub fn crash_for_good(&self, crash: Crash) {
        self.line.request(Request {
            crash,
            is_last: true,
        });
    }

    /// Ends the effect of [`crash_for_good`](Self::crash_for_good), and withdraws the request of a
    /// crash that has not happened.
    pub fn recover(&self) {
        *lock(&self.line.requested) = None;
        self.line.is_down.store(false, SeqCst);
    }

    /// Returns the number of crashes that have happened.
    pub fn crashes(&self) -> usize {
        self.line.crashes.load(SeqCst)
    }

    /// Makes the server cancel the next simple query with exactly this text (57014), as
    /// `pg_cancel_backend` and `statement_timeout` do. The connection survives.
    pub fn cancel_once(&self, sql: impl Into<String>) {
        *lock(&self.line.cancelled) = Some(sql.into());
    }

    /// Returns the number of statements that were cancelled for [`cancel_once`](Self::cancel_once).
    pub fn cancellations(&self) -> usize {
        self.line.cancellations.load(SeqCst)
    }

    /// Returns the number of round trips of all connections. A round trip begins when a client
    /// sends data for the first time after the server has replied. The start of a connection counts
    /// too.
    pub fn round_trips(&self) -> usize {
        self.line.round_trips.load(SeqCst)
    }
}

impl Drop for CrashProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A statement that cancels itself (57014). The proxy sends it in place of the statement that the
/// test wants to be cancelled.
const CANCELLED: &str = "SELECT pg_cancel_backend(pg_backend_pid())";

#[derive(Clone, Copy, Debug)]
struct Request {
    crash: Crash,
    /// Whether the proxy closes new connections after the crash.
    is_last: bool,
}

/// What the connections of a proxy share.
#[derive(Debug, Default)]
struct Line {
    requested: Mutex<Option<Request>>,
    is_down: AtomicBool,
    crashes: AtomicUsize,
    cancelled: Mutex<Option<String>>,
    cancellations: AtomicUsize,
    round_trips: AtomicUsize,
}

impl Line {
    fn request(&self, request: Request) {
        *lock(&self.requested) = Some(request);
    }

    /// Returns whether the test has requested a crash at the point `at`. Removes the request, so
    /// that only one connection crashes.
    fn crashes_at(&self, at: Crash) -> bool {
        let request = lock(&self.requested).take_if(|request| request.crash == at);
        if let Some(Request { is_last, .. }) = request {
            if is_last {
                self.is_down.store(true, SeqCst);
            }
            self.crashes.fetch_add(1, SeqCst);
        }
        request.is_some()
    }

    /// Returns whether the reply to a COMMIT that is sent now is to be lost.
    fn loses_the_reply(&self) -> bool {
        lock(&self.requested).is_some_and(|request| request.crash == Crash::AfterCommit)
    }

    /// Returns whether the test has requested that the server cancels this message. Removes the
    /// request.
    fn cancels(&self, message: Message<'_>) -> bool {
        let taken = lock(&self.cancelled).take_if(|sql| message.is_query(sql));
        if taken.is_some() {
            self.cancellations.fetch_add(1, SeqCst);
        }
        taken.is_some()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The server behind the proxy.
#[derive(Clone, Debug)]
enum Target {
    Tcp(String, u16),
    #[cfg(unix)]
    Unix(std::path::PathBuf),
}

impl Target {
    /// Returns the first host of the settings.
    fn of(config: &Config) -> Option<Self> {
        let port = config.get_ports().first().copied().unwrap_or(5432);
        if let Some(address) = config.get_hostaddrs().first() {
            return Some(Self::Tcp(address.to_string(), port));
        }
        Some(match config.get_hosts().first()? {
            Host::Tcp(name) => Self::Tcp(name.clone(), port),
            #[cfg(unix)]
            Host::Unix(directory) => Self::Unix(directory.join(format!(".s.PGSQL.{port}"))),
        })
    }

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            #[cfg(unix)]
            Self::Unix(path) => Box::new(tokio::net::UnixStream::connect(path).await?),
        })
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

async fn accept(listener: TcpListener, target: Target, line: Arc<Line>) {
    let mut connections = JoinSet::new();
    loop {
        select! {
            accepted = listener.accept() => match accepted {
                Ok(_) if line.is_down.load(SeqCst) => {}
                Ok((client, _)) => {
                    connections.spawn(serve(client, target.clone(), Arc::clone(&line)));
                }
                // The client has closed the connection, or the process has too many files open.
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Forwards one connection until one side closes it or it crashes. Then both sides are closed.
async fn serve(mut client: TcpStream, target: Target, line: Arc<Line>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut server = target.connect().await?;
    line.round_trips.fetch_add(1, SeqCst);
    start(&mut client, &mut server).await?;
    let (from_client, to_client) = split(client);
    let (from_server, mut to_server) = split(server);
    let state = State::default();
    let requests = async {
        if forward_requests(from_client, &mut to_server, &line, &state).await? == End::Closed {
            // The server may still execute statements. It closes the connection after them.
            to_server.shutdown().await?;
            pending::<()>().await;
        }
        Ok(())
    };
    select! {
        ended = requests => ended,
        ended = forward_replies(from_server, to_client, &line, &state) => ended.map(drop),
    }
}

/// What the two directions of a connection share.
#[derive(Default)]
struct State {
    /// Whether the server has replied since the last message of the client.
    has_replied: AtomicBool,
    /// Whether the replies are held back: the client has sent a COMMIT whose reply will be lost.
    holds_replies: AtomicBool,
}

/// The codes that a client sends in place of a protocol version to request encryption.
const SSL_REQUEST: [u8; 4] = 80_877_103_u32.to_be_bytes();
const GSS_REQUEST: [u8; 4] = 80_877_104_u32.to_be_bytes();

/// The longest first message that the server accepts, in bytes.
const MAX_START_BYTES: u32 = 10_000;

/// Forwards the first message of a connection, which has no type byte. Declines requests for
/// encryption that come before this message.
async fn start(client: &mut TcpStream, server: &mut (impl Stream + ?Sized)) -> io::Result<()> {
    loop {
        let length = client.read_u32().await?;
        if !(8..=MAX_START_BYTES).contains(&length) {
            return Err(io::Error::other("not the start of a PostgreSQL connection"));
        }
        let mut message = length.to_be_bytes().to_vec();
        message.resize(usize::try_from(length).map_err(io::Error::other)?, 0);
        client.read_exact(&mut message[4..]).await?;
        if message[4..8] == SSL_REQUEST || message[4..8] == GSS_REQUEST {
            client.write_all(b"N").await?;
        } else {
            return server.write_all(&message).await;
        }
    }
}

/// How the forwarding of one direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The sender has closed its side.
    Closed,
    Crashed,
}

async fn forward_requests(
    mut client: impl AsyncRead + Unpin,
    server: &mut (impl AsyncWrite + Unpin),
    line: &Line,
    state: &State,
) -> io::Result<End> {
    let (mut received, mut prepared) = (Vec::new(), Prepared::default());
    loop {
        if client.read_buf(&mut received).await? == 0 {
            return Ok(End::Closed);
        }
        if state.has_replied.swap(false, SeqCst) {
            line.round_trips.fetch_add(1, SeqCst);
        }
        let mut complete = 0;
        while let Some((message, length)) = Message::first(&received[complete..])? {
            if prepared.commits(message) {
                if line.crashes_at(Crash::BeforeCommit) {
                    server.write_all(&received[..complete]).await?;
                    return Ok(End::Crashed);
                }
                if line.loses_the_reply() {
                    state.holds_replies.store(true, SeqCst);
                }
            }
            if line.cancels(message) {
                server.write_all(&received[..complete]).await?;
                server.write_all(&simple_query(CANCELLED)?).await?;
                received.drain(..complete + length);
                complete = 0;
            } else {
                complete += length;
            }
        }
        server.write_all(&received[..complete]).await?;
        received.drain(..complete);
    }
}

/// Forwards the replies. After the client has sent a COMMIT whose reply will be lost, no reply is
/// forwarded: a real connection loss would also lose the earlier replies that the client has not
/// received yet.
async fn forward_replies(
    mut server: impl AsyncRead + Unpin,
    mut client: impl AsyncWrite + Unpin,
    line: &Line,
    state: &State,
) -> io::Result<End> {
    let mut received = Vec::new();
    loop {
        if server.read_buf(&mut received).await? == 0 {
            return Ok(End::Closed);
        }
        let mut complete = 0;
        while let Some((message, length)) = Message::first(&received[complete..])? {
            if message.is_committed() && line.crashes_at(Crash::AfterCommit) {
                return Ok(End::Crashed);
            }
            // This connection does not crash: the server rolled back, or another connection
            // committed first and took the request. So forward the replies again.
            if message.is_committed() || message.is_rolled_back() {
                state.holds_replies.store(false, SeqCst);
            }
            complete += length;
        }
        if complete > 0 {
            state.has_replied.store(true, SeqCst);
        }
        if state.holds_replies.load(SeqCst) {
            continue;
        }
        client.write_all(&received[..complete]).await?;
        received.drain(..complete);
    }
}
