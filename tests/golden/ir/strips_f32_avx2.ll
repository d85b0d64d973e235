; ModuleID = "strips_f32_avx2"
target triple = "unknown-unknown-unknown"
target datalayout = ""

define internal void @"zero"(ptr %".1", i64 %".2") noinline nounwind
{
entry:
  br label %"body"
body:
  %".4" = icmp slt i64 0, %".2"
  br i1 %".4", label %"loop", label %"done"
loop:
  %".6" = phi  i64 [0, %"body"], [%".9", %"loop"]
  %".7" = getelementptr float, ptr %".1", i64 %".6"
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %".7", align 4
  %".9" = add nsw i64 %".6", 8
  %".10" = icmp slt i64 %".9", %".2"
  br i1 %".10", label %"loop", label %"done"
done:
  ret void
}

define internal void @"copy"(ptr noalias %".1", ptr noalias %".2", i64 %".3") noinline nounwind
{
entry:
  br label %"body"
body:
  %".5" = and i64 %".3", -8
  %".6" = icmp slt i64 0, %".5"
  br i1 %".6", label %"loop", label %"done"
loop:
  %".8" = phi  i64 [0, %"body"], [%".13", %"loop"]
  %".9" = getelementptr float, ptr %".2", i64 %".8"
  %".10" = load <8 x float>, ptr %".9", align 4
  %".11" = getelementptr float, ptr %".1", i64 %".8"
  store <8 x float> %".10", ptr %".11", align 4
  %".13" = add nsw i64 %".8", 8
  %".14" = icmp slt i64 %".13", %".5"
  br i1 %".14", label %"loop", label %"done"
done:
  %".16" = and i64 %".3", -4
  %".17" = icmp slt i64 %".5", %".16"
  br i1 %".17", label %"loop.1", label %"done.1"
loop.1:
  %".19" = phi  i64 [%".5", %"done"], [%".24", %"loop.1"]
  %".20" = getelementptr float, ptr %".2", i64 %".19"
  %".21" = load <4 x float>, ptr %".20", align 4
  %".22" = getelementptr float, ptr %".1", i64 %".19"
  store <4 x float> %".21", ptr %".22", align 4
  %".24" = add nsw i64 %".19", 4
  %".25" = icmp slt i64 %".24", %".16"
  br i1 %".25", label %"loop.1", label %"done.1"
done.1:
  %".27" = icmp slt i64 %".16", %".3"
  br i1 %".27", label %"loop.2", label %"done.2"
loop.2:
  %".29" = phi  i64 [%".16", %"done.1"], [%".34", %"loop.2"]
  %".30" = getelementptr float, ptr %".2", i64 %".29"
  %".31" = load float, ptr %".30", align 4
  %".32" = getelementptr float, ptr %".1", i64 %".29"
  store float %".31", ptr %".32", align 4
  %".34" = add nsw i64 %".29", 1
  %".35" = icmp slt i64 %".34", %".3"
  br i1 %".35", label %"loop.2", label %"done.2"
done.2:
  ret void
}
