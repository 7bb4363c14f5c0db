//! When to stop.

/// Waits until the process is asked to end: SIGTERM or SIGINT, elsewhere than on Unix Ctrl-C.
pub async fn terminated() {
    let asked = asked().await;
    if let Err(error) = asked {
        tracing::error!(%error, "signals cannot be heard: nothing but the end of the process will stop this");
        std::future::pending::<()>().await;
    }
}

#[cfg(unix)]
async fn asked() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut term, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

#[cfg(not(unix))]
async fn asked() -> std::io::Result<()> {
    tokio::signal::ctrl_c().await
}
