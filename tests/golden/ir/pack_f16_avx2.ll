; ModuleID = "pack_f16_avx2"
target triple = "unknown-unknown-unknown"
target datalayout = ""

define void @"pack"(ptr %".1", i64 %".2", i64 %".3") nounwind
{
entry:
  %".42" = alloca [1 x float]
  br label %"body"
body:
  %".5" = getelementptr i64, ptr %".1", i64 2
  %".6" = load i64, ptr %".5", align 8
  %".7" = inttoptr i64 %".6" to ptr
  %".8" = mul nsw i64 %".2", 7
  %".9" = getelementptr i64, ptr %".7", i64 %".8"
  %".10" = load i64, ptr %".1", align 8
  %".11" = inttoptr i64 %".10" to ptr
  %".12" = getelementptr i64, ptr %".9", i64 1
  %".13" = load i64, ptr %".12", align 8
  %".14" = getelementptr half, ptr %".11", i64 %".13"
  %".15" = getelementptr i64, ptr %".1", i64 1
  %".16" = load i64, ptr %".15", align 8
  %".17" = inttoptr i64 %".16" to ptr
  %".18" = load i64, ptr %".9", align 8
  %".19" = getelementptr float, ptr %".17", i64 %".18"
  %".20" = getelementptr i64, ptr %".1", i64 3
  %".21" = load i64, ptr %".20", align 8
  %".22" = inttoptr i64 %".21" to ptr
  %".23" = getelementptr i64, ptr %".9", i64 2
  %".24" = load i64, ptr %".23", align 8
  %".25" = getelementptr i64, ptr %".22", i64 %".24"
  %".26" = getelementptr i64, ptr %".1", i64 4
  %".27" = load i64, ptr %".26", align 8
  %".28" = inttoptr i64 %".27" to ptr
  %".29" = getelementptr i64, ptr %".9", i64 4
  %".30" = load i64, ptr %".29", align 8
  %".31" = getelementptr i64, ptr %".28", i64 %".30"
  %".32" = getelementptr i64, ptr %".9", i64 3
  %".33" = load i64, ptr %".32", align 8
  %".34" = getelementptr i64, ptr %".9", i64 5
  %".35" = load i64, ptr %".34", align 8
  %".36" = getelementptr i64, ptr %".9", i64 6
  %".37" = load i64, ptr %".36", align 8
  %".38" = getelementptr i64, ptr %".1", i64 6
  %".39" = load i64, ptr %".38", align 8
  %".40" = getelementptr i64, ptr %".1", i64 7
  %".41" = load i64, ptr %".40", align 8
  store float              0x0, ptr %".42", align 4
  %".44" = icmp slt i64 0, %".39"
  br i1 %".44", label %"loop", label %"done"
loop:
  %".46" = phi  i64 [0, %"body"], [%".87", %"done.1"]
  %".47" = mul nsw i64 %".46", %".41"
  %".48" = getelementptr half, ptr %".14", i64 %".47"
  %".49" = icmp slt i64 0, %".33"
  br i1 %".49", label %"loop.1", label %"done.1"
done:
  %".90" = load float, ptr %".42", align 4
  %".91" = fcmp uno float %".90",              0x0
  %".92" = zext i1 %".91" to i64
  %".93" = getelementptr i64, ptr %".1", i64 5
  %".94" = load i64, ptr %".93", align 8
  %".95" = inttoptr i64 %".94" to ptr
  %".96" = getelementptr i64, ptr %".95", i64 %".2"
  store i64 %".92", ptr %".96", align 8
  ret void
loop.1:
  %".51" = phi  i64 [0, %"loop"], [%".84", %"done.3"]
  %".52" = mul nsw i64 %".51", %".39"
  %".53" = add nsw i64 %".52", %".46"
  %".54" = mul nsw i64 %".53", %".37"
  %".55" = getelementptr float, ptr %".19", i64 %".54"
  %".56" = getelementptr i64, ptr %".25", i64 %".51"
  %".57" = load i64, ptr %".56", align 8
  %".58" = getelementptr half, ptr %".48", i64 %".57"
  %".59" = icmp slt i64 0, %".35"
  br i1 %".59", label %"loop.2", label %"done.2"
done.1:
  %".87" = add nsw i64 %".46", 1
  %".88" = icmp slt i64 %".87", %".39"
  br i1 %".88", label %"loop", label %"done"
loop.2:
  %".61" = phi  i64 [0, %"loop.1"], [%".73", %"loop.2"]
  %".62" = getelementptr i64, ptr %".31", i64 %".61"
  %".63" = load i64, ptr %".62", align 8
  %".64" = getelementptr half, ptr %".58", i64 %".63"
  %".65" = load half, ptr %".64", align 2
  %".66" = fpext half %".65" to float
  %".67" = getelementptr float, ptr %".55", i64 %".61"
  store float %".66", ptr %".67", align 4
  %".69" = load float, ptr %".42", align 4
  %".70" = fmul float %".66",              0x0
  %".71" = fadd float %".69", %".70"
  store float %".71", ptr %".42", align 4
  %".73" = add nsw i64 %".61", 1
  %".74" = icmp slt i64 %".73", %".35"
  br i1 %".74", label %"loop.2", label %"done.2"
done.2:
  %".76" = icmp slt i64 %".35", %".37"
  br i1 %".76", label %"loop.3", label %"done.3"
loop.3:
  %".78" = phi  i64 [%".35", %"done.2"], [%".81", %"loop.3"]
  %".79" = getelementptr float, ptr %".55", i64 %".78"
  store float              0x0, ptr %".79", align 4
  %".81" = add nsw i64 %".78", 1
  %".82" = icmp slt i64 %".81", %".37"
  br i1 %".82", label %"loop.3", label %"done.3"
done.3:
  %".84" = add nsw i64 %".51", 1
  %".85" = icmp slt i64 %".84", %".33"
  br i1 %".85", label %"loop.1", label %"done.1"
}
