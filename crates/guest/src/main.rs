//! The program inside the test VM: the agent that the lab talks to, and the loads that the lab
//! starts.
//!
//! Every load prints JSON lines on its standard output. Times are nanoseconds of `CLOCK_MONOTONIC`.

mod adversary;
mod advise;
mod agent;
mod amount;
mod app;
mod attribute;
mod burst;
mod claim;
mod clock;
mod footprint;
mod frame;
mod hibernate;
mod latency;
mod load;
mod map;
mod pattern;
mod place;
mod present;
mod reclaim;
mod record;
mod regions;
mod reuse;
mod signals;
mod spin;
mod touch;
mod user;
mod write;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use omr_testkit::FakeRoot;

#[derive(Parser)]
#[command(version, about = "The tool inside omr's test VM")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answers the lab's requests on a serial port that is not the console
    Agent(agent::Args),
    /// Runs a command in a cgroup; makes the cgroup if needed
    In(place::Args),
    /// Fills memory with a known pattern and holds it; SIGUSR1 verifies every byte
    Fill(load::FillArgs),
    /// Gives hints by the bare system call
    Advise(advise::Args),
    /// Holds memory of many kinds; SIGUSR1 verifies it
    Map(map::Args),
    /// Fills memory and keeps rewriting it slowly
    Stress(load::StressArgs),
    /// Allocates and touches memory at once on SIGUSR1, and prints how long each page took
    Burst(burst::Args),
    /// Plays an application of several processes; each line of its input uses it once
    App(app::Args),
    /// Starts applications and switches between them like a user
    User(user::Args),
    /// Tells omr's daemon of a person with a session; SIGUSR1 makes the person leave or come back
    Present(present::Args),
    /// Fills memory and holds it; SIGUSR1 touches every page once and prints how long that took
    Touch(touch::Args),
    /// Fills regions of memory and touches each at its own period; SIGUSR1 prints when each was
    /// last touched
    Regions(regions::Args),
    /// Uses blocks of memory at random by a planted law, and prints each minute how old memory is
    /// and how old it was when it was used again
    Reuse(reuse::Args),
    /// Serves requests from a hot part of its memory; SIGUSR1 makes a part of the cold memory hot
    Footprint(footprint::Args),
    /// Runs a periodic task and measures its delay and the time of its work
    Latency(latency::Args),
    /// Burns CPU for a while after each SIGUSR1, and prints when it first ran
    Spin(spin::Args),
    /// Reclaims like the seed: one write of the whole amount
    SeedReclaim(reclaim::SeedArgs),
    /// Reclaims as a person would by hand: small writes, each after the swap disk has caught up
    ByHand(reclaim::ByHandArgs),
    /// Sets or removes an extended attribute
    Attribute(attribute::Args),
    /// Writes to a file once, and prints how long that took and how soon a signal ended it
    Write(write::Args),
    /// Plays a user without rights who makes as much as the kernel allows
    Adversary(adversary::Args),
    /// Keeps telling omr's daemon that a group of this user is in the foreground
    Claim(claim::Args),
    /// Hibernates, and prints the clocks from before and after
    Hibernate(hibernate::Args),
    /// Prints memory figures at an interval
    Record(record::Args),
    /// Makes a fake root with this many busy groups, and prints its path
    Tree {
        /// Number of groups
        groups: usize,
    },
}

fn main() -> Result<ExitCode> {
    match Args::parse().command {
        Command::Agent(args) => agent::serve(&args)?,
        Command::In(args) => return place::exec(&args),
        Command::Fill(args) => load::fill(&args)?,
        Command::Advise(args) => advise::run(&args)?,
        Command::Map(args) => map::run(&args)?,
        Command::Stress(args) => load::stress(&args)?,
        Command::Burst(args) => burst::run(&args)?,
        Command::App(args) => app::run(&args)?,
        Command::User(args) => user::run(&args)?,
        Command::Present(args) => present::run(&args)?,
        Command::Touch(args) => touch::run(&args)?,
        Command::Regions(args) => regions::run(&args)?,
        Command::Reuse(args) => reuse::run(&args)?,
        Command::Footprint(args) => footprint::run(&args)?,
        Command::Latency(args) => latency::run(&args)?,
        Command::Spin(args) => spin::run(&args)?,
        Command::SeedReclaim(args) => reclaim::in_one_write(&args)?,
        Command::ByHand(args) => reclaim::by_hand(&args)?,
        Command::Attribute(args) => attribute::set(&args)?,
        Command::Write(args) => write::run(&args)?,
        Command::Adversary(args) => adversary::run(&args)?,
        Command::Claim(args) => claim::run(&args)?,
        Command::Hibernate(args) => hibernate::run(&args)?,
        Command::Record(args) => record::run(&args)?,
        Command::Tree { groups } => println!("{}", FakeRoot::scaled_tree(groups).keep().display()),
    }
    Ok(ExitCode::SUCCESS)
}
