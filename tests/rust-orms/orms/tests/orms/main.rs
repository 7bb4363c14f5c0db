//! Tests of the consumers with SeaORM and with diesel-async on a real server, which `PGHOST`,
//! `PGUSER` and `PGPORT` name.

mod diesel;
mod fixtures;
mod kills;
mod rules;
mod seaorm;
