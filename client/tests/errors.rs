//! Errors travel with `?`: those of the client through the code of a service, and any error through a handler.

use std::error::Error as StdError;

use idem_client::{
    DecodeError, Effect, Error, Handled, HandlerError, HandlerFailed, Message, NotReady, PublishError, SourceEnded,
    TerminalError, UnavailableError,
    http::BodyError,
    journal::{CallError, CallFailed},
};

fn is_an_error<E: StdError + Send + Sync + 'static>() {}
fn is_sent<E: Send + Sync + 'static>() {}

/// Goal: every public error type can be boxed, sent to another thread and kept. `HandlerError` and
/// `CallError` take every error instead, and become one.
#[test]
fn every_error_type_is_an_error() {
    is_an_error::<Error>();
    is_an_error::<NotReady>();
    is_an_error::<DecodeError>();
    is_an_error::<HandlerFailed>();
    is_an_error::<PublishError>();
    is_an_error::<SourceEnded>();
    is_an_error::<TerminalError>();
    is_an_error::<UnavailableError>();
    is_an_error::<BodyError>();
    is_an_error::<CallFailed>();
    is_sent::<HandlerError>();
    is_sent::<CallError>();
}

/// Goal: `?` of a service that uses `anyhow`, or boxed errors.
#[test]
fn errors_of_the_client_pass_through_other_code() {
    fn by_anyhow() -> anyhow::Result<()> {
        Err(Error::LeaseLost)?;
        Ok(())
    }
    fn boxed() -> Result<(), Box<dyn StdError + Send + Sync>> {
        Err(PublishError::Rejected("no".into()))?;
        Ok(())
    }
    fn of_a_handler() -> anyhow::Result<()> {
        Err(HandlerError::terminal("no such order").into_error())?;
        Ok(())
    }
    assert_eq!(by_anyhow().unwrap_err().to_string(), Error::LeaseLost.to_string());
    assert!(boxed().unwrap_err().is::<PublishError>());
    assert!(of_a_handler().unwrap_err().is::<HandlerFailed>());
}

/// A failing step, one for each type of error that a handler meets.
fn handler(step: &str) -> Handled {
    let boxed: Result<(), Box<dyn StdError + Send + Sync>> = Err("boxed".into());
    match step {
        "driver" => "port=none".parse::<tokio_postgres::Config>().map(drop)?,
        "json" => serde_json::from_str::<u64>("no").map(drop)?,
        "idem" => Effect::json("", &1).map(drop)?,
        "anyhow" => Err(anyhow::anyhow!("a bad day"))?,
        "boxed" => boxed?,
        "io" => Err(std::io::Error::other("disk"))?,
        "text" => Err("text")?,
        "formatted" => Err(format!("text {step}"))?,
        "handler" => handler("anyhow").map(drop)?,
        other => panic!("no such step: {other}"),
    }
    Ok(Vec::new())
}

#[test]
fn handler_takes_every_error_with_a_question_mark() {
    for step in ["driver", "json", "anyhow", "boxed", "io", "text", "formatted", "handler"] {
        let error = handler(step).unwrap_err();
        assert!(!error.is_terminal() && !error.is_unavailable(), "{step}: {error}");
        assert!(!error.to_string().is_empty(), "{step}");
    }
}

/// Goal: what an error says about the message outlives helpers that use `anyhow`.
#[test]
fn class_of_an_error_outlives_anyhow() {
    use anyhow::Context;

    let helper = |error: HandlerError| -> anyhow::Result<()> { Err(error.into_error())? };
    let with_context = |error: HandlerError| helper(error).context("while charging");
    let unreadable = || -> anyhow::Result<()> {
        Message::new("orders", "no JSON").json::<u64>()?;
        Ok(())
    };
    for (name, failed) in [
        ("terminal", helper(HandlerError::terminal("no such order"))),
        ("terminal with context", with_context(HandlerError::terminal("no such order"))),
        ("unreadable", unreadable()),
        ("unreadable with context", unreadable().context("while reading")),
    ] {
        let error = HandlerError::from(failed.unwrap_err());
        assert!(error.is_terminal(), "{name}: {error}");
    }
    for (name, failed) in [
        ("unavailable", helper(HandlerError::unavailable("503"))),
        ("unavailable with context", with_context(HandlerError::unavailable("503"))),
    ] {
        let error = HandlerError::from(failed.unwrap_err());
        assert!(error.is_unavailable(), "{name}: {error}");
    }
    let failed = HandlerError::from(helper("a bad day".into()).unwrap_err());
    assert!(!failed.is_terminal() && !failed.is_unavailable());
}

/// Goal: a line of the log repeats no cause.
#[test]
fn text_of_a_marked_error_is_there_once() {
    let error = HandlerError::terminal("no such order");
    assert_eq!(error.to_string(), "no such order");
    let boxed = HandlerError::from(error.into_error());
    assert_eq!(boxed.to_string(), "no such order");
}
