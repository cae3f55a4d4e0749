//! Which path of the view is covered by what: a pure function of the launch, so that its order can be tested.

use std::path::{Path, PathBuf};

use super::{
    ViewError,
    hidden::{Covered, Hidden},
};

/// A tree of the host that shall be in the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    pub path: PathBuf,
    pub directory: bool,
}

/// What lies over one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// An empty directory; `holds_others` when something deeper is put into it.
    Nothing {
        holds_others: bool,
    },
    /// An empty file.
    NoFile,
    /// An empty directory that everybody in the agent may write.
    Private,
    Devices,
    Processes,
    /// A tree of the host.
    Tree,
}

/// One mount of the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub path: PathBuf,
    pub cover: Cover,
}

/// All mounts of a view, in the order in which they are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    steps: Vec<Step>,
}

/// What every agent has for itself.
const OWN: &[(&str, Cover)] = &[
    ("/tmp", Cover::Private),
    ("/var/tmp", Cover::Private),
    (super::DEVICES, Cover::Devices),
    ("/proc", Cover::Processes),
    ("/run", Cover::Nothing { holds_others: true }),
];

impl Plan {
    /// Orders wishes and covers: shallow before deep, and of two on one path the later word of: tables, launch, force.
    ///
    /// # Errors
    /// [`ViewError::Hidden`] when a tree lies at or below a path that is hidden by force. The worktree may: it comes from the
    /// caller's own descriptor and shows nothing beside it.
    pub fn new(wishes: &[Wish], hidden: &Hidden, worktree: &Path) -> Result<Self, ViewError> {
        for wish in wishes.iter().filter(|wish| wish.path != worktree && !is_own(&wish.path)) {
            if let Some(over) = hidden.forced.iter().find(|forced| wish.path.starts_with(&forced.path)) {
                return Err(ViewError::Hidden { path: wish.path.clone(), hidden: over.path.clone() });
            }
        }
        let mut steps: Vec<Step> = Vec::new();
        let mut put = |path: &Path, cover| {
            steps.retain(|step| step.path != path);
            steps.push(Step { path: path.to_owned(), cover });
        };
        for Covered { path, directory } in &hidden.usual {
            put(path, nothing(*directory));
        }
        for (path, cover) in OWN {
            put(Path::new(path), *cover);
        }
        for Covered { path, directory } in &hidden.forced {
            put(path, nothing(*directory));
        }
        for wish in wishes {
            put(&wish.path, Cover::Tree);
        }
        steps.sort_by_key(|step| step.path.components().count());

        let mut plan = Self { steps: Vec::with_capacity(steps.len()) };
        for step in steps {
            // Below an empty place there is nothing left to hide.
            let hides = matches!(step.cover, Cover::Nothing { .. } | Cover::NoFile);
            if hides && plan.over(&step.path).is_some_and(|over| over.cover != Cover::Tree) {
                continue;
            }
            plan.steps.push(step);
        }
        let trees: Vec<PathBuf> = wishes.iter().map(|wish| wish.path.clone()).collect();
        for step in &mut plan.steps {
            if let Cover::Nothing { holds_others } = &mut step.cover {
                *holds_others = trees.iter().any(|tree| *tree != step.path && tree.starts_with(&step.path));
            }
        }
        Ok(plan)
    }

    /// The mounts in order.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The deepest step so far that a path lies below.
    fn over(&self, path: &Path) -> Option<&Step> {
        self.steps.iter().rev().find(|step| step.path != path && path.starts_with(&step.path))
    }
}

/// guard's own socket inside the agent's `/run`.
fn is_own(path: &Path) -> bool {
    path == Path::new(super::AGENT_SOCKET)
}

fn nothing(directory: bool) -> Cover {
    if directory { Cover::Nothing { holds_others: false } } else { Cover::NoFile }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(path: &str) -> Covered {
        Covered { path: path.into(), directory: !path.contains('.') || path.ends_with(".ssh") }
    }

    fn wish(path: &str) -> Wish {
        Wish { path: path.into(), directory: true }
    }

    fn hidden() -> Hidden {
        Hidden {
            usual: ["/home", "/root", "/home/u/.ssh", "/home/u/.netrc", "/root/.ssh"].map(covered).to_vec(),
            forced: ["/run/guard", "/var/lib/guard"].map(covered).to_vec(),
        }
    }

    fn cover(plan: &Plan, path: &str) -> Option<Cover> {
        plan.steps().iter().find(|step| step.path == Path::new(path)).map(|step| step.cover)
    }

    #[test]
    fn the_deeper_line_wins_and_comes_later() {
        let wishes = ["/home/u", "/home/u/work", "/home/u/.ssh/known_hosts"].map(wish);
        let plan = Plan::new(&wishes, &hidden(), Path::new("/home/u/work")).expect("a plan");
        let position =
            |path: &str| plan.steps().iter().position(|step| step.path == Path::new(path)).expect(path);
        for pair in ["/home", "/home/u", "/home/u/.ssh", "/home/u/.ssh/known_hosts"].windows(2) {
            assert!(position(pair[0]) < position(pair[1]), "{pair:?}");
        }
        assert_eq!(cover(&plan, "/home/u/.ssh"), Some(Cover::Nothing { holds_others: true }));
        assert_eq!(cover(&plan, "/home/u/.netrc"), Some(Cover::NoFile));
        assert_eq!(cover(&plan, "/root"), Some(Cover::Nothing { holds_others: false }));
    }

    #[test]
    fn nothing_is_hidden_twice() {
        let plan = Plan::new(&[wish("/w")], &hidden(), Path::new("/w")).expect("a plan");
        assert_eq!(cover(&plan, "/root/.ssh"), None);
        assert_eq!(cover(&plan, "/run/guard"), None, "/run is empty already");
        assert_eq!(cover(&plan, "/var/lib/guard"), Some(Cover::Nothing { holds_others: false }));
    }

    #[test]
    fn what_is_hidden_by_force_stays_hidden_but_for_the_worktree() {
        let inside = [wish("/var/lib/guard/x")];
        assert!(matches!(Plan::new(&inside, &hidden(), Path::new("/w")), Err(ViewError::Hidden { .. })));
        let plan = Plan::new(&inside, &hidden(), Path::new("/var/lib/guard/x")).expect("the worktree may");
        assert_eq!(cover(&plan, "/var/lib/guard"), Some(Cover::Nothing { holds_others: true }));
        // A writable parent does not open what is forced.
        let plan = Plan::new(&[wish("/var")], &hidden(), Path::new("/w")).expect("a plan");
        assert_eq!(cover(&plan, "/var/lib/guard"), Some(Cover::Nothing { holds_others: false }));
    }
}
