#[path = "simulation/load.rs"]
mod load;
#[path = "simulation/world.rs"]
mod world;
use load::*;
use polymux_policy::*;
use world::*;
fn built_in(kind: PolicyKind) -> Mover {
    Mover { kind, decide: Box::new(move |facts| decide(kind, facts)), evict: Box::new(move |facts| evict(kind, facts)) }
}
#[test]
fn diagnose() {
    let seeds: u64 = std::env::var("SEEDS").ok().and_then(|v| v.parse().ok()).unwrap_or(4);
    let verbose = std::env::var("VERBOSE").is_ok();
    for kind in PolicyKind::ALL.into_iter().filter(|k| *k != PolicyKind::Static) {
        for tiers in [2, 3] {
            for draws in [Draws::Independent, Draws::Regular] {
                for shape in [Shape::Zipf, Shape::Scan, Shape::Uniform, Shape::Mixed] {
                    let (mut early, mut late, mut bad, mut h0, mut h1, mut t90) = (0, 0, 0, 0, 0, 0);
                    for seed in 0..seeds {
                        let mover = built_in(kind);
                        let mut world = World::new(tiers, Load { shape, draws }, 1000 + seed, &mover);
                        let before = world.expected_hits();
                        h0 += before;
                        let mut hits = vec![];
                        for _ in 0..10 { world.run_minutes(1, &mover); hits.push(world.expected_hits()); }
                        early += world.moved.len();
                        world.moved.clear();
                        world.run_minutes(20, &mover);
                        late += world.moved.len();
                        bad += usize::from(!world.moved.is_empty());
                        let after = world.expected_hits();
                        h1 += after;
                        let need = before + (after.max(before) - before) * 9 / 10;
                        t90 += 1 + hits.iter().position(|h| *h >= need).unwrap_or(30);
                        if verbose { for m in &world.moved { println!("   {m:?}"); } }
                    }
                    let s = seeds;
                    println!("{kind} {shape:?} {draws:?} {tiers}: early {} late {late} runs with late {bad}/{seeds} hits {} -> {} t90 {} min", early as u64 / s, h0 / s, h1 / s, t90 as u64 / s);
                }
            }
        }
    }
}
